"""What an execution leaves behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from perdure import App, step
from perdure.engine.execution import Execution
from perdure.engine.scope import scope_needed
from perdure.stores.exchange import Cancelling

pytestmark = pytest.mark.anyio


async def test_a_run_that_has_ended_leaves_nothing_to_the_garbage_collector() -> None:
    app = App("sqlite:///:memory:")
    seen: list[weakref.ref[Execution]] = []

    @step
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow
    async def flow(n: int) -> int:
        seen.append(weakref.ref(scope_needed("it").execution))
        return await double(await double(n))

    gc.collect()
    gc.disable()
    try:
        async with app, app.worker():
            assert await (await flow.start(1)).result() == 4
            assert [execution() for execution in seen] == [None]
    finally:
        gc.enable()


async def test_a_task_of_its_own_ends_with_the_run_though_it_called_nothing() -> None:
    app = App("sqlite:///:memory:")
    tasks: list[asyncio.Task[None]] = []

    @step
    async def note() -> None: ...

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.01)

    @app.workflow
    async def flow(*, calls: bool) -> None:
        tasks.append(asyncio.create_task(beat()))
        await asyncio.sleep(0)
        if calls:
            await note()

    async with app, app.worker():
        for calls in (False, True):
            await (await flow.start(calls=calls)).result()
            async with asyncio.timeout(10):
                await asyncio.wait(tasks)
            assert [task.cancelled() for task in tasks] == [True] * len(tasks)


async def test_a_cancellation_waits_as_long_as_replay_comes_to_something_more(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("sqlite:///:memory:")
    found: list[Execution] = []
    told: list[str] = []

    @app.workflow
    async def flow() -> None:
        found.append(scope_needed("it").execution)
        await asyncio.Event().wait()

    async with app, app.worker():
        run = await flow.start()
        async with asyncio.timeout(10):
            while not found:
                await asyncio.sleep(0)
        execution, later = found[0], Later()
        with monkeypatch.context() as patch:
            patch.setattr(execution, "runtime", SimpleNamespace(loop=later))
            patch.setattr(execution, "task", SimpleNamespace(cancel=told.append))
            patch.setattr(execution, "_replaying", True)
            execution.cancel(Cancelling("why"))
            for replayed in range(1, 4):
                patch.setattr(execution, "_replayed", replayed)
                later.ring()
                assert not told
            later.ring()
            assert told == ["why"]
        await run.delete(force=True)


class Later:
    """A loop whose timers ring when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def call_later(self, _: float, call: Callable[..., object], *args: object) -> None:
        self.calls.append(lambda: call(*args))

    def ring(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()
