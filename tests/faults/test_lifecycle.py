"""Workers in unusual places: a thread's loop, two in one process, started again, with their store closed under them."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from faults.broken import Wrapper
from faults.kit import PATIENCE, World, until
from perdure.errors import PerdureError, StoreError
from perdure.model import State

pytestmark = pytest.mark.anyio


async def test_a_worker_serves_from_the_event_loop_of_a_thread(world: World) -> None:
    ready, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with world.app.worker(grace=5):
            ready.set()
            while not ended.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*(world.flows.leaf.run(number) for number in range(20)))
        assert results == list(range(1, 21))
    finally:
        ended.set()
        await asyncio.to_thread(thread.join)
    assert ready.is_set()
    assert await world.no_workers()


async def test_an_app_is_first_used_by_several_threads_at_once(world: World) -> None:
    barrier = threading.Barrier(8)
    results: list[int] = []

    def client(number: int) -> None:
        barrier.wait()
        results.append(world.flows.leaf.run(number).wait())

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    async with world.app.worker(grace=5):
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert sorted(results) == list(range(1, 9))


async def test_two_workers_of_one_process_share_the_work(world: World) -> None:
    async with world.app.worker(concurrency=1, grace=5) as one, world.app.worker(concurrency=1, grace=5) as two:
        runs = [await world.flows.holding.start("gate") for _ in range(2)]
        await until(lambda: one.running == two.running == 1, "both are at work")
        world.open_gate("gate")
        for run in runs:
            await run.result(timeout=30)
    assert world.log.count("ran") == 2


async def test_a_worker_is_started_again_after_it_was_stopped(world: World) -> None:
    worker = world.app.worker(grace=5)
    for number in range(3):
        async with worker:
            async with asyncio.timeout(PATIENCE):
                assert await world.flows.leaf.run(number) == number + 1
        assert await world.no_workers()
    async with worker:
        with pytest.raises(PerdureError, match="started already"):
            await worker.start()


async def test_stopping_twice_is_stopping_once(world: World) -> None:
    worker = world.app.worker(grace=5)
    await worker.start()
    await worker.stop()
    await worker.stop()
    assert await world.no_workers()


async def test_a_store_closed_under_a_worker_loses_nothing(world: World) -> None:
    worker = world.app.worker(lease=1, grace=0.5)
    await worker.start()
    run = await world.flows.holding.start("gate")
    await until(lambda: worker.running == 1, "the run is at work")
    await world.app.close()
    world.open_gate("gate")
    began = time.monotonic()
    await worker.stop()
    assert time.monotonic() - began < 15
    async with world.app.worker(lease=1, grace=5):  # which opens it again
        await run.result(timeout=30)
    assert (await world.record(run.id)).state is State.SUCCEEDED


async def test_a_worker_works_on_when_its_store_is_closed_and_used_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.app.worker(lease=60, grace=5) as worker:
        runs = [await world.flows.holding.start("gate") for _ in range(5)]
        await until(lambda: worker.running == 5, "the runs are at work")
        await world.app.close()
        world.open_gate("gate")
        await until(lambda: "does not answer" in caplog.text, "their checkpoints are refused")
        later = await world.flows.leaf.start(1)
        assert await later.result(timeout=30) == 2
        for run in runs:
            await run.result(timeout=30)
            assert world.log.count("ran", run.id) == 1


async def test_who_waits_for_a_result_when_the_store_is_closed_is_told(world: World) -> None:
    run = await world.flows.leaf.start(1)
    store = await world.behind(Wrapper)
    result = asyncio.ensure_future(run.result(timeout=30))
    await until(lambda: store.calls["ended"], "the result is asked for")
    await world.app.close()
    with pytest.raises(StoreError, match="closed"):
        await result


async def test_a_worker_whose_event_loop_is_gone_keeps_no_lease(world: World) -> None:
    """The process lives on, the loop does not: its runs go on elsewhere."""

    run = await world.flows.holding.start("gate", True)
    lost = world.spawn("lost_loop", {"lease": 0.5})
    await until(lambda: world.log.count("lost", pid=lost.pid), "the event loop is gone")
    assert world.log.count("ran", run.id, pid=lost.pid) == 1
    heir = await world.serving(lease=0.5)
    await until(lambda: world.log.count("ran", run.id, pid=heir.pid), "the run goes on elsewhere")
    world.open_gate("gate")
    assert await run.result(timeout=30) == heir.pid
    assert lost.code is None
