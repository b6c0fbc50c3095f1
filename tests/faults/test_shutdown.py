"""Workers that are asked to end while they are busy."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.broken import Slow
from faults.kit import Process, World, until
from perdure.model import State

pytestmark = pytest.mark.anyio

LEASE = 600
"""Nothing here may wait for the end of a lease."""


def by_program(world: World) -> Process:
    return world.worker(lease=LEASE, grace=2, concurrency=5)


def by_command(world: World) -> Process:
    target = f"{Path(__file__).parent / 'program.py'}:app"
    options = ["--lease", str(LEASE), "--grace", "2", "--concurrency", "5"]
    return world.spawn("", command=[sys.executable, "-m", "perdure", "worker", target, *options])


WAYS: dict[str, Callable[[World], Process]] = {"program": by_program}
if importlib.util.find_spec("perdure.cli") is not None:
    WAYS["command"] = by_command


@pytest.mark.parametrize("way", WAYS)
async def test_runs_in_flight_end_within_the_grace_and_the_rest_goes_on_elsewhere_at_once(
    world: World, way: str
) -> None:
    leaving = WAYS[way](world)
    quick = await world.flows.holding.start("quick")
    slow = await world.flows.holding.start("slow")
    slow_thread = await world.flows.holding.start("slow", True)
    runs = (quick, slow, slow_thread)
    for run in runs:
        await until(lambda run=run: world.log.count("ran", run.id, pid=leaving.pid), "the run is at work")
    heir = await world.serving(lease=LEASE, concurrency=5)
    leaving.terminate()
    world.open_gate("quick", leaving)
    assert await quick.result(timeout=30) == leaving.pid
    for run in (slow, slow_thread):
        await until(lambda run=run: world.log.count("ran", run.id, pid=heir.pid), "the run goes on elsewhere")
    assert await leaving.ended(timeout=20) == 0
    world.open_gate("slow")
    assert await slow.result(timeout=30) == heir.pid
    assert await slow_thread.result(timeout=30) == heir.pid
    for run in runs:
        record = await world.record(run.id)
        assert (record.state, record.attempt, record.crashes) == (State.SUCCEEDED, 1, 0)
    assert world.log.count("cancelled", slow.id, pid=leaving.pid) == 1  # a thread may not come to say it in time


async def test_a_step_that_never_returns_does_not_keep_its_process(world: World) -> None:
    leaving = await world.serving(lease=LEASE, grace=0.2, concurrency=1)
    run = await world.flows.deaf.start()
    await until(lambda: world.log.count("ran", run.id), "the step is at work")
    leaving.terminate()
    assert await leaving.ended(timeout=20) == 0
    assert (await world.record(run.id)).state is State.QUEUED


async def test_nothing_new_is_begun_while_stopping(world: World) -> None:
    worker = world.app.worker(lease=LEASE, grace=30, concurrency=2)
    await worker.start()
    held = await world.flows.holding.start("gate")
    await until(lambda: worker.running == 1, "the run is at work")
    stopping = asyncio.ensure_future(worker.stop())
    await asyncio.sleep(0)
    later = await world.flows.leaf.start(1)
    world.open_gate("gate")
    await held.result(timeout=30)
    await stopping
    assert (await world.record(later.id)).state is State.QUEUED
    assert world.log.count("ran", later.id) == 0


async def test_a_batch_that_is_claimed_while_the_worker_stops_is_handed_back(world: World) -> None:
    slow = await world.behind(Slow)
    worker = world.app.worker(lease=LEASE, grace=0, concurrency=64)
    await worker.start()
    runs = await world.flows.leaf.start_many(range(50))
    await until(slow.kept_back.is_set, "the runs are claimed, and the worker does not know")
    stopping = asyncio.ensure_future(worker.stop())
    await until(lambda: not worker.runtime.pump.claiming, "the worker stops")
    slow.go_on.set()
    await stopping
    assert await world.states() == {State.QUEUED: 50}
    assert {(record.attempt, record.crashes) for record in await world.records()} == {(1, 0)}
    await world.serving(lease=LEASE, concurrency=50)
    for number, run in enumerate(runs):
        assert await run.result(timeout=30) == number + 1


async def test_a_step_is_tried_again_on_another_worker_and_what_came_before_is_not(world: World) -> None:
    leaving = await world.serving(lease=LEASE, grace=0)
    run = await world.flows.retrying.start(1)
    await until(lambda: world.log.count("ran", run.id, "third_time"), "the step was tried")
    leaving.terminate()
    assert await leaving.ended() == 0
    tried = world.log.count("ran", run.id, "third_time")
    assert tried < 3
    heir = await world.serving(lease=LEASE)
    assert await run.result(timeout=30) == 2 + 3
    assert world.log.count("ran", run.id, "add") == 1
    assert world.log.count("ran", run.id, "third_time") == 3
    assert world.log.count("ran", run.id, "third_time", pid=heir.pid) == 3 - tried
    assert (await world.record(run.id)).crashes == 0


async def test_an_event_loop_that_is_cancelled_hands_its_runs_back(world: World) -> None:
    """Ctrl-C in `asyncio.run` cancels the program, which leaves the worker's `async with`."""

    async def program() -> None:
        async with world.app.worker(lease=LEASE, grace=0):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(program())
    run = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", run.id), "the run is at work")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = await world.record(run.id)
    assert (record.state, record.attempt) == (State.QUEUED, 1)
    assert await world.no_workers()
