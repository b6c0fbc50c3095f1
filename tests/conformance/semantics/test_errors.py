"""Errors: what a workflow catches is the same at first and on replay, and what is kept tells all."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import step
from perdure.errors import PerdureError, RunCancelled, RunFailed, StepFailed

from .conftest import Explore, Play
from .kit import Gate, new_app, replay

pytestmark = pytest.mark.anyio


class Declined(Exception):
    """Can be made again from its arguments."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)
        self.code = code


class KeywordOnly(Exception):
    """Can't be made again from its arguments."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


async def caught(play: Play, error: Exception) -> list[Exception]:
    """What the workflow catches when a step raises that: at first, and on replay."""
    app, gate, seen = new_app(), Gate(), list[Exception]()

    @step
    async def fail() -> None:
        raise error

    @app.workflow
    async def flow() -> None:
        try:
            await fail()
        except Exception as found:
            seen.append(found)
        await gate.pass_through()

    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await replay(sandbox)
        gate.open()
        await run.result()
    return seen


async def test_an_exception_is_caught_by_its_type_at_first_and_on_replay(play: Play) -> None:
    first, again = await caught(play, Declined(51, "insufficient funds"))
    assert isinstance(first, Declined)
    assert isinstance(again, Declined)
    assert again.code == 51
    assert "The traceback of where it was raised first" in again.__notes__[0]


async def test_a_builtin_exception_is_caught_by_its_type(play: Play) -> None:
    first, again = await caught(play, KeyError("x"))
    assert (type(first), first.args) == (type(again), again.args) == (KeyError, ("x",))


@pytest.mark.parametrize("error", [KeywordOnly(code=7), ExceptionGroup("two", [ValueError("a")])])
async def test_one_that_cannot_be_made_again_is_a_step_failed_both_times(play: Play, error: Exception) -> None:
    first, again = await caught(play, error)
    assert isinstance(first, StepFailed)
    assert isinstance(again, StepFailed)
    assert str(first) == str(again)
    assert type(error).__qualname__ in str(first)
    assert first.__cause__ is error


async def failure(play: Play, error: Exception) -> RunFailed:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        raise error

    async with play(app):
        with pytest.raises(RunFailed) as failed:
            await flow.run()
        return failed.value


class ApiError(Exception):
    """Is made from fewer arguments than it has attributes."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status
        self.response: object = object()


async def test_its_attributes_are_the_same_at_first_and_on_replay_or_are_not_there(play: Play) -> None:
    error = ApiError("no such customer", 404)
    error.add_note("asked twice")
    for one in await caught(play, error):
        assert isinstance(one, ApiError)
        assert one.status == 404
        assert one.response is not error.response
        assert "asked twice" in one.__notes__


async def test_an_error_of_the_system_has_its_file_at_first_and_on_replay(play: Play) -> None:
    for one in await caught(play, FileNotFoundError(2, "none", "/no/such/file")):
        assert isinstance(one, FileNotFoundError)
        assert one.filename == "/no/such/file"


async def test_a_run_failed_shows_type_message_traceback_and_cause(play: Play) -> None:
    app = new_app()

    def open_the_file() -> None:
        raise FileNotFoundError("prices.csv")

    @step
    async def read() -> None:
        try:
            open_the_file()
        except FileNotFoundError as error:
            raise Declined(1, "no prices") from error

    @app.workflow
    async def flow() -> None:
        await read()

    async with play(app):
        run = await flow.start()
        with pytest.raises(RunFailed) as failed:
            await run.result()
        info = failed.value.info
        assert info.type.endswith(":Declined")
        assert info.message == "(1, 'no prices')"
        assert info.cause is not None
        assert (info.cause.type, info.cause.message) == ("builtins:FileNotFoundError", "prices.csv")
        text = str(failed.value)
        assert f"run {run.id} failed with Declined: (1, 'no prices')" in text
        assert "in open_the_file" in text
        assert "FileNotFoundError: prices.csv" in text
        status = await run.status()
        assert status.error == info


async def test_an_exception_of_the_workflow_itself_is_kept_whatever_it_is(play: Play) -> None:
    for error in (KeywordOnly(code=7), Unprintable()):
        assert type(error).__qualname__ in (await failure(play, error)).info.type


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["step", "thread", "workflow", "sync workflow"])
async def test_code_that_exits_is_a_failure_of_its_run_alone(play: Play, error: BaseException, place: str) -> None:
    app = new_app()

    @step
    async def leave() -> None:
        raise error

    @step
    def leave_thread() -> None:
        raise error

    @app.workflow
    async def flow() -> None:
        if place == "step":
            await leave()
        if place == "thread":
            await leave_thread()
        raise error

    @app.workflow
    def sync_flow() -> None:
        raise error

    @app.workflow
    async def other() -> str:
        return "fine"

    async with play(app):
        with pytest.raises(RunFailed, match=type(error).__name__):
            await (sync_flow if place == "sync workflow" else flow).run()
        assert await other.run() == "fine"


async def test_each_traceback_is_told_once_however_many_runs_it_comes_through(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def child() -> None:
        raise Declined(51, "insufficient funds")

    @app.workflow
    async def parent() -> None:
        await child.run()

    @app.workflow
    async def grandparent() -> None:
        await parent.run()

    async with play(app):
        with pytest.raises(RunFailed) as failure:
            await grandparent.run()
        text = str(failure.value)
        for line in ('raise Declined(51, "insufficient funds")', "await child.run()", "await parent.run()"):
            assert text.count(line) == 1
        assert failure.value.summary.count("insufficient funds") == 1
        assert "Traceback" not in failure.value.info.message


async def test_a_childs_failure_is_raised_in_its_parent_at_first_and_on_replay(play: Play) -> None:
    app, gate, seen = new_app(), Gate(), list[Any]()

    @app.workflow
    async def child() -> None:
        raise Declined(51, "insufficient funds")

    @app.workflow
    async def parent() -> None:
        try:
            await child.run()
        except RunFailed as error:
            seen.append((error.info.type, error.info.message))
        await gate.pass_through()

    async with play(app) as sandbox:
        run = await parent.start()
        await gate.reached()
        await replay(sandbox)
        gate.open()
        await run.result()
        assert len(seen) == 2
        assert seen[0] == seen[1]
        assert seen[0][0].endswith(":Declined")


async def test_a_childs_cancellation_is_raised_in_its_parent(play: Play) -> None:
    app, gate = new_app(), Gate()

    @app.workflow
    async def child() -> None:
        await gate.pass_through()

    @app.workflow
    async def parent() -> str:
        try:
            await child.options(id="kid").run()
        except RunCancelled as error:
            return error.reason
        return "none"

    async with play(app):
        run = await parent.start()
        await gate.reached()
        await app.run("kid").cancel("not needed")
        assert await run.result() == "not needed"


async def test_every_error_of_the_library_has_one_root(play: Play) -> None:
    assert isinstance(await failure(play, ValueError("x")), PerdureError)


async def test_failures_survive_a_crash_at_any_point(explore: Explore) -> None:
    app = new_app()

    @step
    async def fail(how: str) -> None:
        raise Declined(1, "no") if how == "plain" else KeywordOnly(code=2)

    @app.workflow
    async def child() -> None:
        raise LookupError("child")

    @app.workflow
    async def flow() -> list[str]:
        seen: list[str] = []
        for call in (lambda: fail("plain"), lambda: fail("keyword"), child.run):
            try:
                await call()
            except Exception as error:
                seen.append(type(error).__name__)
        return seen

    report = await explore(flow)
    report.check()
    assert report.undisturbed == "succeeded with ['Declined', 'StepFailed', 'RunFailed']"
