"""What `docs/code-changes.md` says of runs in flight: one store, served by one version of the code and the next."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Run, State, step, wait_signal
from perdure.errors import RunFailed

pytestmark = pytest.mark.anyio

Deploy = Callable[[App], Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/app.db"


@asynccontextmanager
async def deployed(app: App) -> AsyncGenerator[None]:
    async with app, app.worker(grace=0):
        yield


async def waiting(run: Run[Any]) -> None:
    """Until the run has come to its wait for the signal `go`."""
    while (await run.status()).state is not State.WAITING:
        await run.history()  # a look at the store takes its time


async def in_flight(url: str, make: Callable[[App], Any], *args: object) -> str:
    """A run of the old code that waits for the signal `go`; its worker has stopped."""
    app = App(url)
    workflow = make(app)
    async with deployed(app):
        run = await workflow.start(*args)
        await waiting(run)
    return run.id


async def goes_on(url: str, make: Callable[[App], Any], run_id: str) -> Any:
    """The result of the run under the new code, and the keys of its history."""
    app = App(url)
    workflow = make(app)
    async with deployed(app):
        run = workflow.get(run_id)
        await run.signal("go")
        return await run.result(timeout=10), [event.key for event in await run.history()]


calls: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()


@step
async def first(text: str) -> str:
    calls.append("first")
    return text.upper()


@step
async def second(text: str) -> str:
    calls.append("second")
    return f"{text}!"


def version_1(app: App) -> Any:
    @app.workflow
    async def flow(text: str) -> str:
        one = await first(text)
        await wait_signal("go")
        return await second(one)

    return flow


async def test_a_step_that_was_added_runs_and_changes_no_other_key(url: str) -> None:
    @step
    async def between(text: str) -> str:
        calls.append("between")
        return f"{text}?"

    def version_2(app: App) -> Any:
        @app.workflow
        async def flow(text: str) -> str:
            zero = await between(text)  # before what the run has behind it
            one = await first(text)
            await wait_signal("go")
            return await second(one + zero)

        return flow

    result, keys = await goes_on(url, version_2, await in_flight(url, version_1, "a"))
    assert result == "Aa?!"
    assert calls == ["first", "between", "second"]
    assert keys == ["first", "between", "signal:go", "second"]


async def test_the_checkpoint_of_a_step_that_was_removed_is_left_alone(url: str) -> None:
    def version_2(app: App) -> Any:
        @app.workflow
        async def flow(text: str) -> str:
            await wait_signal("go")
            return await second(text)

        return flow

    result, keys = await goes_on(url, version_2, await in_flight(url, version_1, "a"))
    assert result == "a!"
    assert keys == ["first", "signal:go", "second"]


@pytest.mark.parametrize(("name", "expected"), [(None, ["first", "initial"]), ("first", ["first"])])
async def test_a_renamed_step_runs_again_unless_it_keeps_its_name(
    name: str | None, expected: list[str], url: str
) -> None:
    @step(name=name)
    async def initial(text: str) -> str:
        calls.append("initial")
        return text.upper()

    def version_2(app: App) -> Any:
        @app.workflow
        async def flow(text: str) -> str:
            one = await initial(text)
            await wait_signal("go")
            return one

        return flow

    result, _ = await goes_on(url, version_2, await in_flight(url, version_1, "a"))
    assert result == "A"
    assert calls == expected


async def test_two_steps_may_change_places(url: str) -> None:
    def old(app: App) -> Any:
        @app.workflow
        async def flow() -> str:
            text = await first("a") + await second("b")
            await wait_signal("go")
            return text

        return flow

    def new(app: App) -> Any:
        @app.workflow
        async def flow() -> str:
            text = await second("b") + await first("a")
            await wait_signal("go")
            return text

        return flow

    result, _ = await goes_on(url, new, await in_flight(url, old))
    assert result == "b!A"
    assert calls == ["first", "second"]


async def test_a_call_of_the_same_step_before_another_one_is_noticed_unless_it_has_a_key(url: str) -> None:
    def version_2(app: App, *, key: str | None = None) -> Any:
        @app.workflow
        async def flow(text: str) -> str:
            zero = await (first.options(key=key) if key else first)("zero")
            one = await first(text)
            await wait_signal("go")
            return await second(zero + one)

        return flow

    run_id = await in_flight(url, version_1, "a")
    with pytest.raises(RunFailed, match="ArgumentsChanged"):
        await goes_on(url, version_2, run_id)

    app = App(url)
    version_2(app, key="zero")
    async with deployed(app):
        await app.run(run_id).retry()
        assert await app.run(run_id).result(timeout=10) == "ZEROA!"


async def test_runs_stay_on_the_queue_on_which_they_were_started(url: str) -> None:
    def version_2(app: App) -> Any:
        @app.workflow(queue="other")
        async def flow(text: str) -> str:
            return text

        return flow

    run_id = await in_flight(url, version_1, "a")
    app = App(url)
    version_2(app)
    async with deployed(app):
        await app.run(run_id).signal("go")
        assert "no live worker serves queue default" in await app.run(run_id).why()
        async with app.worker(queues=["default"]):
            assert await app.run(run_id).result(timeout=10) == "a"


async def test_changed_arguments_fail_the_run_and_a_retry_with_the_old_code_goes_on(url: str) -> None:
    def version_2(app: App) -> Any:
        @app.workflow
        async def flow(text: str) -> str:
            one = await first(f"other {text}")
            await wait_signal("go")
            return await second(one)

        return flow

    run_id = await in_flight(url, version_1, "a")
    with pytest.raises(RunFailed, match=r"ArgumentsChanged: step first .* other arguments"):
        await goes_on(url, version_2, run_id)

    app = App(url)
    version_1(app)
    async with deployed(app):
        await app.run(run_id).retry()
        assert await app.run(run_id).result(timeout=10) == "A!"
    assert calls == ["first", "second"]


@pytest.mark.parametrize("how", ["start", "run", "start_many", "start_batch"])
async def test_other_arguments_of_a_child_fail_the_run(url: str, how: str) -> None:
    def version(number: int) -> Callable[[App], Any]:
        def make(app: App) -> Any:
            @app.workflow
            async def child(text: str) -> str:
                return text

            @app.workflow
            async def flow() -> None:
                text = f"version {number}"
                if how == "start":
                    await child.start(text)
                elif how == "run":
                    await child.run(text)
                elif how == "start_many":
                    await child.start_many(["a", text])
                else:
                    await (await child.start_batch(["a", text])).result()
                await wait_signal("go")

            return flow

        return make

    run_id = await in_flight(url, version(1))
    with pytest.raises(RunFailed, match=r"ArgumentsChanged: child .* other arguments"):
        await goes_on(url, version(2), run_id)


async def test_the_same_arguments_of_a_child_that_failed_are_the_same(url: str) -> None:
    def make(app: App) -> Any:
        @app.workflow
        async def child(text: str) -> str:
            raise ValueError(text)

        @app.workflow
        async def flow() -> str:
            try:
                await child.run("a")
            except RunFailed as error:
                await wait_signal("go")
                return error.info.message
            return "not so"

        return flow

    result, _ = await goes_on(url, make, await in_flight(url, make))
    assert result == "a"


async def test_a_parameter_of_a_step_may_be_added_with_a_default(url: str) -> None:
    @step(name="first")
    async def first_2(text: str, times: int = 1) -> str:
        calls.append("first_2")
        return text * times

    def version_2(app: App) -> Any:
        @app.workflow
        async def flow(text: str) -> str:
            one = await first_2(text)
            await wait_signal("go")
            return one

        return flow

    result, _ = await goes_on(url, version_2, await in_flight(url, version_1, "a"))
    assert result == "A"
    assert calls == ["first"]


async def test_a_parameter_of_a_workflow_may_be_added_with_a_default_and_one_removed(url: str) -> None:
    def old(app: App) -> Any:
        @app.workflow
        async def flow(text: str, gone: int) -> str:
            await wait_signal("go")
            return text

        return flow

    def new(app: App) -> Any:
        @app.workflow
        async def flow(text: str, new: str = "new") -> str:
            await wait_signal("go")
            return text + new

        return flow

    result, _ = await goes_on(url, new, await in_flight(url, old, "a", 1))
    assert result == "anew"


@dataclass
class Result1:
    text: str


@dataclass
class Result2:
    text: str
    size: int


@dataclass
class Result2WithDefault:
    text: str
    size: int = 0


def returning(kind: type[Any]) -> Callable[[App], Any]:
    @step(name="make")
    async def make() -> kind:  # pyright: ignore[reportInvalidTypeForm]
        calls.append("make")
        return Result1("a")

    def version(app: App) -> Any:
        @app.workflow
        async def flow() -> kind:  # pyright: ignore[reportInvalidTypeForm]
            made = await make()
            await wait_signal("go")
            return made

        return flow

    return version


async def test_a_field_may_be_added_with_a_default(url: str) -> None:
    run_id = await in_flight(url, returning(Result1))
    result, _ = await goes_on(url, returning(Result2WithDefault), run_id)
    assert result == Result2WithDefault("a", 0)
    assert calls == ["make"]


async def test_a_kept_value_that_does_not_fit_any_more_fails_the_run(url: str) -> None:
    run_id = await in_flight(url, returning(Result1))
    with pytest.raises(RunFailed, match=r"DecodingError: the result of step make can't be read: .*size"):
        await goes_on(url, returning(Result2), run_id)


async def test_an_input_that_does_not_fit_any_more_fails_the_run(url: str) -> None:
    def version_2(app: App) -> Any:
        @app.workflow
        async def flow(text: str, needed: int) -> str:
            return text

        return flow

    run_id = await in_flight(url, version_1, "a")
    with pytest.raises(RunFailed, match=r"DecodingError: the input of workflow flow can't be read: .*needed"):
        await goes_on(url, version_2, run_id)


async def test_a_run_whose_workflow_is_gone_waits_and_says_so(url: str) -> None:
    def renamed(app: App) -> Any:
        @app.workflow
        async def other(text: str) -> str:
            return text

        return other

    run_id = await in_flight(url, version_1, "a")
    app = App(url)
    renamed(app)
    async with deployed(app):
        await app.run(run_id).signal("go")
        assert "no live worker serves workflow flow" in await app.run(run_id).why()
    result, _ = await goes_on(url, version_1, run_id)
    assert result == "A!"


async def test_a_step_that_became_a_child_run_is_noticed(url: str) -> None:
    def version_2(app: App) -> Any:
        @app.workflow(name="first")
        async def child(text: str) -> str:
            return text

        @app.workflow
        async def flow(text: str) -> str:
            one = await child.run(text)
            await wait_signal("go")
            return one

        return flow

    run_id = await in_flight(url, version_1, "a")
    with pytest.raises(RunFailed, match="first was a step in an earlier attempt"):
        await goes_on(url, version_2, run_id)
