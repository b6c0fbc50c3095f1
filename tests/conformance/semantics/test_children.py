"""Children, and results of other runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import State, sleep, step, wait_signal
from perdure.engine.execution import Execution
from perdure.errors import RunFailed, RunNotFound

from .conftest import Explore, Play
from .kit import new_app, state

pytestmark = pytest.mark.anyio


async def test_a_parent_and_its_child_share_one_slot(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def child(n: int) -> int:
        return n * 2

    @app.workflow
    async def parent(depth: int) -> int:
        return await (parent.run(depth - 1) if depth else child.run(21))

    async with play(app, concurrency=1):
        async with asyncio.timeout(20):
            assert await parent.run(5) == 42


async def test_children_of_one_parent_are_awaited_together(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def child(n: int) -> int:
        await sleep(n)
        return n

    @app.workflow
    async def parent() -> int:
        runs = await child.start_many(range(100))
        return sum(await asyncio.gather(*(run.result() for run in runs)))

    async with play(app, concurrency=3) as sandbox:
        run = await parent.start()
        await sandbox.advance(minutes=2)
        assert await run.result() == sum(range(100))
        assert len(await app.runs(parent=run.id, limit=200)) == 100


async def test_a_parent_does_not_come_back_for_each_of_its_children(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Execution, "comeback", property(lambda self: 3600.0 if self._replayed >= 50 else 0.0))
    app = new_app()
    begun: list[str] = []

    @app.workflow
    async def child(n: int) -> int:
        return n

    @app.workflow
    async def parent() -> int:
        begun.append("parent")
        runs = [await child.start(n) for n in range(60)]
        return sum(await asyncio.gather(*(run.result() for run in runs)))

    @app.workflow
    def sync_parent() -> int:
        begun.append("sync parent")
        runs = [child.start(n).wait() for n in range(60)]
        return sum(run.result().wait() for run in runs)

    async with play(app, concurrency=1):
        assert await parent.run() == sum(range(60))
    assert begun == ["parent"] * 2  # it was put away once, when it had nothing behind it
    async with play(app, concurrency=2):
        assert await sync_parent.run() == sum(range(60))
    assert begun[2:].count("sync parent") == 2


async def test_a_child_is_started_once(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def child(n: int) -> int:
        await sleep(60)
        return n

    @app.workflow
    async def parent() -> list[int]:
        first = await child.start(1)
        second = await child.start(2)
        return [await second.result(), await first.result(), await child.run(3)]

    (await explore(parent)).check()


async def test_a_run_can_wait_for_any_other_run(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def one() -> int:
        return await wait_signal("go", int)

    @app.workflow
    async def other(run_id: str) -> int:
        return await one.get(run_id).result()

    async with play(app) as sandbox:
        first = await one.start()
        second = await other.start(first.id)
        await sandbox.settle()
        assert [await state(first), await state(second)] == ["waiting", "waiting"]
        await first.signal("go", 7)
        assert await second.result() == 7


async def test_a_wait_for_a_run_that_is_not_there_ends(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> str:
        try:
            await app.run("nobody").result()
        except RunNotFound as error:
            await sleep(1)
            return str(error)
        return "none"

    report = await explore(flow)
    report.check()
    assert "'nobody'" in report.undisturbed


async def test_a_wait_for_a_child_that_is_deleted_ends(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def child() -> str:
        return await wait_signal("go", str)

    @app.workflow
    async def parent() -> str:
        return await child.run()

    @app.workflow
    async def several() -> list[str]:
        return await (await child.start_batch([(), ()])).result()

    async with play(app) as sandbox:
        runs = [await parent.start(), await several.start()]
        await sandbox.settle()
        for run in runs:
            await app.run((await app.runs(parent=run.id))[0].id).delete(force=True)
        await sandbox.settle()
        assert [await state(run) for run in runs] == ["failed", "waiting"]
        [left] = await app.runs(parent=runs[1].id)
        await app.run(left.id).signal("go", "x")
        for run in runs:
            with pytest.raises(RunFailed, match="RunNotFound: there is no run"):
                await run.result()
        # Tried again, it starts another child.
        await runs[0].retry()
        await sandbox.settle()
        await app.run((await app.runs(parent=runs[0].id))[0].id).signal("go", "anew")
        assert await runs[0].result() == "anew"


async def test_a_run_that_is_pruned_while_who_waits_for_it_is_paused(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def one() -> str:
        return await wait_signal("go", str)

    @app.workflow
    async def other(run_id: str) -> str:
        return await one.get(run_id).result()

    async with play(app) as sandbox:
        first = await one.start()
        second = await other.start(first.id)
        await sandbox.settle()
        await app.limits.pause(workflow="other")
        await first.signal("go", "x")
        await sandbox.settle()
        assert await app.prune(workflow="one", age=0) == 1
        await app.limits.resume(workflow="other")
        with pytest.raises(RunFailed, match="RunNotFound"):
            await second.result()


async def test_a_wait_for_a_result_gives_up_in_time(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def child() -> None:
        await wait_signal("never")

    @app.workflow
    async def parent() -> str:
        run = await child.start()
        try:
            await run.result(timeout=timedelta(hours=1))
        except TimeoutError:
            await sleep(1)
            return "too late"
        return "none"

    async with play(app) as sandbox:
        run = await parent.start()
        await sandbox.advance(hours=2)
        assert await run.result() == "too late"


async def test_a_client_waits_for_a_result_for_so_long(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        await wait_signal("never")

    async with play(app):
        run = await flow.start()
        with pytest.raises(TimeoutError, match="it goes on"):
            await run.result(timeout=0.01)
        with pytest.raises(RunNotFound):
            await app.run("nobody").result()


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("way", ["run", "result", "batch"])
async def test_a_step_can_not_wait_for_a_run_with_its_slot_in_hand(play: Play, way: str, sync: bool) -> None:
    app = new_app()

    @app.workflow
    async def child(n: int) -> int:
        return n

    async def asked() -> Any:
        if way == "run":
            return await child.run(1)
        if way == "result":
            return await (await child.start(1)).result()
        return await (await child.start_batch([1])).result()

    @step
    async def ask() -> Any:
        return await asked()

    @step
    def ask_sync() -> Any:
        if way == "run":
            return child.run(1).wait()
        if way == "result":
            return child.start(1).wait().result().wait()
        return child.start_batch([1]).wait().result().wait()

    @app.workflow
    async def parent() -> Any:
        return await (ask_sync if sync else ask)()

    async with play(app, concurrency=1) as sandbox:
        with pytest.raises(RunFailed, match=r"WouldDeadlock: .* in a step would wait with a slot"):
            await parent.run()
        await sandbox.settle()
        ended = [] if way == "run" else [State.SUCCEEDED]
        assert [run.state for run in await app.runs(workflow="child")] == ended


async def test_a_step_may_read_the_result_of_a_run_that_has_ended_or_wait_for_a_while(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def child(n: int) -> int:
        return n

    @step
    async def read(run_id: str) -> int:
        return await child.get(run_id).result()

    @step
    async def ask() -> int:
        return await (await child.start(2)).result(timeout=20)

    @app.workflow
    async def parent(run_id: str) -> list[int]:
        return [await read(run_id), await ask()]

    async with play(app, concurrency=2):
        first = await child.start(1)
        await first.result()
        assert await parent.run(first.id) == [1, 2]


async def test_a_thousand_children_are_awaited_together(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def child(n: int) -> int:
        return n

    @app.workflow
    async def parent() -> int:
        runs = await child.start_many(range(1000))
        return sum(await asyncio.gather(*(run.result() for run in runs)))

    async with play(app, concurrency=50):
        assert await parent.run() == sum(range(1000))


@pytest.mark.parametrize("first", ["child", "parent"])
async def test_a_parent_that_was_cancelled_with_its_child_goes_on_with_it_or_another(play: Play, first: str) -> None:
    """It waits for the child that it has, so that one is retried first; or the parent twice, for a new child."""
    app = new_app()

    @app.workflow
    async def child() -> int:
        await sleep(60)
        return 1

    @app.workflow
    async def parent() -> int:
        return await child.run()

    async with play(app) as sandbox:
        run = await parent.start()
        await sandbox.settle()
        await run.cancel("no more")
        [old] = await app.runs(parent=run.id)
        if first == "child":
            await app.run(old.id).retry()
        else:
            await run.retry()
            await sandbox.settle()
            assert "RunCancelled" in await run.why()
        await run.retry()
        await sandbox.advance(60)
        assert await run.result() == 1
        assert len(await app.runs(parent=run.id)) == (1 if first == "child" else 2)
