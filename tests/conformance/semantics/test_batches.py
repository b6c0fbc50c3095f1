"""Batches: progress, results as they end, and a callback that runs once when all have ended."""

from __future__ import annotations

import asyncio

import pytest

from perdure import BatchProgress, sleep, step, wait_signal
from perdure.errors import BatchNotFound, IdConflict, InvalidInput, RunFailed, RunNotFound

from .conftest import Explore, Play
from .kit import new_app, replay

pytestmark = pytest.mark.anyio


async def test_a_batch_tells_its_progress_and_calls_back_once(play: Play) -> None:
    app, called = new_app(), list[str]()

    @app.workflow
    async def item(n: int) -> int:
        if n == 3:
            raise ValueError("three")
        await wait_signal("go")
        return n * 10

    @step
    async def failures(batch_id: str) -> int:
        return (await app.batch(batch_id).progress()).failed

    @app.workflow
    async def report(batch_id: str) -> int:
        called.append(batch_id)
        return await failures(batch_id)

    async with play(app) as sandbox:
        batch = await item.start_batch(range(4), callback=report)
        await sandbox.settle()
        progress = await batch.progress()
        assert progress == BatchProgress(total=4, succeeded=0, failed=1, cancelled=0)
        assert (progress.done, progress.left) == (1, 3)
        runs = await batch.runs()
        assert [run.id for run in await app.runs(batch=batch.id)] == [run.id for run in reversed(runs)]
        await runs[0].cancel()
        for run in runs[1:3]:
            assert called == []
            await run.signal("go")
            await sandbox.settle()
        await replay(sandbox)
        await sandbox.settle()
        assert called == [batch.id]
        [callback] = await app.runs(workflow="report")
        assert await app.run(callback.id).result() == 1
        assert await batch.progress() == BatchProgress(total=4, succeeded=2, failed=1, cancelled=1)


async def test_runs_of_a_batch_come_as_they_end(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        await wait_signal("go")
        return n

    async with play(app) as sandbox:
        batch = await item.start_batch([0, 1, 2])
        runs = await batch.runs()
        await sandbox.settle()
        await runs[1].signal("go")
        seen: list[int] = []
        async for run in batch.ended():
            seen.append(await run.result())
            if len(seen) == 1:
                await runs[2].signal("go")
            elif len(seen) == 2:
                await runs[0].signal("go")
        assert seen == [1, 2, 0]
        assert await batch.result() == [0, 1, 2]
        assert await item.get_batch(batch.id).result() == [0, 1, 2]


async def test_a_run_that_is_deleted_does_not_keep_its_batch_from_ending(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        await wait_signal("go")
        return n

    async with play(app) as sandbox:
        batch = await item.start_batch([0, 1, 2])
        runs = await batch.runs()
        await sandbox.settle()
        await runs[0].signal("go")
        seen: list[int] = []
        async with asyncio.timeout(20):
            async for run in batch.ended():
                seen.append(await run.result())
                if len(seen) == 1:
                    await runs[1].delete(force=True)
                    await runs[2].signal("go")
            assert seen == [0, 2]
            with pytest.raises(RunNotFound):
                await batch.result()


async def test_the_result_of_a_batch_is_the_first_failure(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        if n:
            raise ValueError(f"item {n}")
        return n

    async with play(app):
        batch = await item.start_batch([0, 1, 2])
        with pytest.raises(RunFailed, match="item 1"):
            await batch.result()


async def test_a_batch_with_an_id_is_started_once(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        return n

    async with play(app):
        first = await item.options(id="batch-7").start_batch([1, 2])
        again = await item.options(id="batch-7").start_batch([1, 2])
        assert (first.id, first.existed, again.existed) == ("batch-7", False, True)
        assert await again.result() == [1, 2]
        assert (await again.progress()).total == 2
        with pytest.raises(IdConflict, match="with 2 runs, not 3"):
            await item.options(id="batch-7").start_batch([1, 2, 3])
        await item.options(id="batch-8/1").start(99)
        with pytest.raises(IdConflict, match="'batch-8/1'"):
            await item.options(id="batch-8").start_batch([1, 2])
        assert len(await app.runs()) == 3
        existed = [(await item.options(id="none").start_batch([])).existed for _ in range(2)]
        assert existed == [False, True]


async def test_a_workflow_opens_a_batch_once(explore: Explore) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        return n + 1

    @app.workflow
    async def flow() -> list[int]:
        batch = await item.start_batch([1, 2, 3])
        return await batch.result()

    (await explore(flow)).check()


async def test_the_result_of_a_batch_is_kept_by_the_workflow_that_saw_it(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        return n

    @app.workflow
    async def total(batch: str) -> int:
        seen = await item.get_batch(batch).result()
        await sleep(3600)
        return sum(seen)

    async with play(app) as sandbox:
        await item.options(id="b").start_batch([1, 2, 3])
        run = await total.start("b")
        await sandbox.settle()
        assert await app.prune(workflow="item", age=0) == 3
        await sandbox.advance(hours=2)
        assert await run.result() == 6


async def test_batches_that_can_not_be(play: Play) -> None:
    app = new_app()

    @app.workflow(unique="k")
    async def single(n: int) -> int:
        return n

    @app.workflow
    async def item(n: int) -> int:
        return n

    @app.workflow(unique="k")
    async def report(batch_id: str) -> None: ...

    async with play(app):
        with pytest.raises(InvalidInput, match="can't have a unique key"):
            single.start_batch([1])
        with pytest.raises(InvalidInput, match="calls back once"):
            item.start_batch([1], callback=report)
        with pytest.raises(InvalidInput) as error:
            item.start_batch([1, "two"])
        assert "at item 1 of start_batch; no run was started" in error.value.__notes__
        with pytest.raises(BatchNotFound):
            await app.batch("nobody").progress()
        assert await app.runs() == []


async def test_an_empty_batch_has_ended(play: Play) -> None:
    app = new_app()

    @app.workflow
    async def item(n: int) -> int:
        return n

    @app.workflow
    async def report(batch_id: str) -> str:
        return batch_id

    async with play(app) as sandbox:
        batch = await item.start_batch([], callback=report)
        assert await batch.result() == []
        assert [run async for run in batch.ended()] == []
        await sandbox.settle()
        [callback] = await app.runs(workflow="report")
        assert callback.state == "succeeded"
