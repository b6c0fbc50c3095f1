"""Apps: several in one process, from any loop and thread, and calls that are used wrongly."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import App, sleep, step
from perdure.errors import DefinitionError, InvalidInput, PerdureError

from .conftest import Play
from .kit import new_app

pytestmark = pytest.mark.anyio


untyped_step: Any = step
"""As those see it who have no type checker."""


@step
async def double(n: int) -> int:
    return n * 2


async def test_two_apps_on_two_stores_do_not_know_each_other(play: Play) -> None:
    one, two = new_app(), new_app()

    @one.workflow(name="flow")
    async def flow_of_one(n: int) -> str:
        return f"one {await double(n)}"

    @two.workflow(name="flow")
    async def flow_of_two(n: int) -> str:
        return f"two {await double(n)}"

    async with play(one), play(two):
        first = await flow_of_one.options(id="same").start(1)
        second = await flow_of_two.options(id="same").start(2)
        assert (first.existed, second.existed) == (False, False)
        assert [await first.result(), await second.result()] == ["one 2", "two 4"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda app: app.worker(queues="default"), r"write queues=\['default'\]"),
        (lambda app: app.worker(queues=[]), "names no queue"),
        (lambda app: app.worker(concurrency=True), "whole number from 1 on, not True"),
        (
            lambda app: app.runs(state="failled"),
            r"'failled' \(did you mean 'failed'\?\); the states are: scheduled, queued",
        ),
        (lambda app: app.runs(state=["failed", "nope"]), "there is no state 'nope'; the states are"),
        (lambda app: app.runs(limit=-1), "limit is a whole number from 1 on, not -1"),
        (lambda app: app.workflow(max_crashes="x"), "max_crashes is a whole number from 1 on, not 'x'"),
        (lambda app: app.workflow(retry=3), r"write retry=Retry\(attempts=3\)"),
        (lambda app: app.workflow(timeout=0), "timeout must be longer than nothing"),
        (lambda _: untyped_step(retry=3), r"write retry=Retry\(attempts=3\)"),
        (lambda _: untyped_step(retry=True), "retry is a Retry, not True"),
        (lambda _: untyped_step(timeout=timedelta(0)), "timeout must be longer than nothing"),
    ],
)
def test_what_can_not_be_is_refused_at_once(wrong: Callable[[Any], object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        wrong(new_app())


async def test_a_run_of_one_app_is_awaited_in_a_step_of_another(play: Play) -> None:
    one, two = new_app(), new_app()

    @one.workflow
    async def inner(n: int) -> int:
        return n + 1

    @step
    async def ask(n: int) -> int:
        return await inner.run(n)

    @two.workflow
    async def outer(n: int) -> int:
        return await ask(n)

    async with play(one), play(two):
        assert await outer.run(1) == 2


async def test_an_app_is_used_from_other_loops_and_threads(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        await sleep(0)
        return await double(n)

    def with_a_loop_of_its_own(n: int) -> int:
        async def main() -> int:
            return await (await flow.start(n)).result()

        return asyncio.run(main())

    def without_a_loop(n: int) -> int:
        run = flow.start(n).wait()
        assert run.status().wait().workflow == "flow"
        return run.result(timeout=10).wait()

    async with play(app):
        threads = [asyncio.to_thread(with_a_loop_of_its_own, n) for n in range(4)]
        threads += [asyncio.to_thread(without_a_loop, n) for n in range(4, 8)]
        assert await asyncio.gather(*threads) == [n * 2 for n in range(8)]


def test_a_program_without_a_loop_does_all_that_a_client_does(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/app.db")

    @app.workflow
    async def flow(n: int) -> int:
        return n

    run = flow.options(id="one").start(1).wait()
    assert flow.options(id="one").start(1).wait().existed
    assert len(flow.start_many(range(2, 12)).wait()) == 10
    assert run.status().wait().state == "queued"
    assert "no live worker" in run.why().wait()
    assert len(app.runs(limit=100).wait()) == 11
    assert sum(count.runs for count in app.counts().wait()) == 11
    assert run.cancel().wait() == "cancelled"
    assert run.history().wait() == []
    app.close().wait()
    assert app.run("one").status().wait().state == "cancelled", "an app that is used again opens its store again"
    app.close().wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_is_told_to_open_a_store_of_its_own(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/app.db")

    @app.workflow
    async def flow(n: int) -> int:
        return n

    flow.start(1).wait()
    child = os.fork()
    if child == 0:
        try:
            flow.start(2).wait()
            os._exit(1)
        except PerdureError as error:
            os._exit(0 if "opened before a fork" in str(error) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(app.runs().wait()) == 1
    app.close().wait()


async def test_a_call_that_nobody_awaits_warns(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None: ...

    async with play(app):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            flow.start()
            gc.collect()
        assert [str(one.message) for one in caught] == [
            "start of flow was never awaited, so it did not happen: write await (or .wait() in sync code)"
        ]
        assert await app.runs() == []


async def test_a_call_happens_once(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None: ...

    async with play(app):
        call = flow.start()
        await call
        with pytest.raises(PerdureError, match="start of flow: awaited twice"):
            await call


async def test_waiting_in_the_thread_of_a_loop_is_an_error(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None: ...

    async with play(app):
        call = flow.start()
        with pytest.raises(PerdureError, match="would block the event loop"):
            call.wait()
        await call


async def test_a_call_works_with_all_of_asyncio(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return n

    async with play(app):
        one, two = await asyncio.gather(flow.start(1), flow.start(2))
        three = await asyncio.wait_for(flow.start(3), 10)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.result()) for run in (one, two, three)]
        assert [task.result() for task in tasks] == [1, 2, 3]


def test_two_workflows_of_one_name_are_refused() -> None:
    app = new_app()

    @app.workflow(name="flow")
    async def first() -> None: ...

    with pytest.raises(DefinitionError, match="two workflows are named 'flow'"):

        @app.workflow(name="flow")
        async def second() -> None: ...


def test_parameters_that_cannot_travel_are_refused_before_a_worker_starts() -> None:
    app = new_app()

    @app.workflow
    async def flow(lock: threading.Event) -> None: ...

    with pytest.raises(DefinitionError, match="can't travel"):
        app.worker()


def test_generators_are_refused() -> None:
    app = new_app()
    with pytest.raises(DefinitionError, match="generator"):

        @app.workflow
        async def flow():
            yield 1


async def test_a_workflow_called_is_the_plain_function() -> None:
    app = new_app()

    @app.workflow
    async def flow(n: int) -> int:
        return await double(n)

    assert await flow(2) == 4
