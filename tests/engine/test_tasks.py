"""The task factory of the event loop that workers run in."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from perdure import App, testing, wait_signal
from perdure.errors import StoreUnavailable

pytestmark = pytest.mark.anyio


def make_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


@pytest.mark.parametrize("before", [None, make_task])
async def test_the_last_worker_of_a_loop_puts_its_task_factory_back(before: Any) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(before)
    async with App("sqlite://") as app:
        first, second = app.worker(), app.worker()
        for _ in range(2):  # a worker can be started again
            await first.start()
            await second.start()
            await first.stop(0)
            await first.stop(0)  # which frees nothing of the other one's
            assert loop.get_task_factory() is not before
            await second.kill()
            assert loop.get_task_factory() is before


async def test_a_task_factory_that_came_later_stays() -> None:
    loop = asyncio.get_running_loop()
    async with App("sqlite://") as app:
        async with app.worker():
            loop.set_task_factory(make_task)
        assert loop.get_task_factory() is make_task


async def test_a_worker_that_can_not_begin_leaves_the_task_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> int:
        raise StoreUnavailable("just now")

    async with App("sqlite://") as app:
        store = await app.client.store()
        for name in ("register", "subscribe"):
            with monkeypatch.context() as patch:
                patch.setattr(store, name, fail)
                with pytest.raises(StoreUnavailable, match="just now"):
                    await app.worker().start()
            assert asyncio.get_running_loop().get_task_factory() is None


async def test_waits_in_a_finally_block_are_no_error_when_a_run_is_put_away(caplog: pytest.LogCaptureFixture) -> None:
    app = App("sqlite://")

    async def wait() -> list[str]:
        seen: list[str] = []
        try:
            seen.append(await wait_signal("go", str))
        finally:
            seen.append(await wait_signal("last", str))
        return seen

    @app.workflow
    async def flow() -> list[str]:
        return await asyncio.shield(wait())

    async with testing.run(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        await run.signal("go", "went")
        await sandbox.settle()
        await run.signal("last", "left")
        assert await run.result() == ["went", "left"]
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
