"""Workers whose clocks are an hour apart: the store's clock is the one that counts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from faults.kit import Process, World, until
from perdure.model import State

pytestmark = pytest.mark.anyio

HOUR = 3600
LEASE = 2


def shifted(world: World, seconds: int, **options: object) -> Process:
    """A worker that believes it is earlier or later than it is."""
    here = str(Path(__file__).parent / "shifted")
    return world.worker(env={"PYTHONPATH": here, "FAULTS_SHIFT": str(seconds)}, lease=LEASE, **options)


async def test_two_workers_with_clocks_two_hours_apart_share_the_work_as_if_they_were_not(world: World) -> None:
    early, late = shifted(world, -HOUR, concurrency=4), shifted(world, HOUR, concurrency=4)
    for process in (early, late):
        await world.serves(process)
    [[*_, told_early, _]] = world.log.find("serving", pid=early.pid)
    [[*_, told_late, _]] = world.log.find("serving", pid=late.pid)
    assert float(told_late) - float(told_early) > 1.9 * HOUR  # they do believe it

    runs = [await world.flows.timed.options(delay=0.5).start() for _ in range(24)]
    moment = datetime.now(UTC) + timedelta(seconds=1)
    at = [await world.flows.leaf.options(at=moment).start(number) for number in range(8)]
    held = [await world.flows.holding.start("gate") for _ in range(2)]
    for run in runs:
        await run.signal("go", 7)
    for run in runs:
        assert await run.result(timeout=40) == 3 + 7
    for number, run in enumerate(at):
        assert await run.result(timeout=30) == number + 1
    for run in held:  # for longer than a lease by now
        await until(lambda run=run: world.log.count("ran", run.id), "the run is at work")
    await asyncio.gather(*(until_renewed(world, process) for process in (early, late)))
    world.open_gate("gate")
    for run in held:
        await run.result(timeout=30)

    records = {record.id: record for record in await world.records()}
    assert {record.state for record in records.values()} == {State.SUCCEEDED}
    assert {(record.attempt, record.crashes) for record in records.values()} == {(1, 0)}  # nothing was taken away
    ran = world.log.times_ran()
    assert {ran[run.id, "third_time"] for run in runs} == {3}
    assert {ran[run.id, "hold"] for run in held} == {1}
    for run in runs:
        record = records[run.id]
        assert record.started_at is not None and record.finished_at is not None
        assert record.started_at - record.created_at >= 500  # the delay
        assert record.finished_at - record.started_at >= 500 + 2 * 400  # the sleep, two waits before a retry
        for event in await run.history():
            assert record.started_at <= event.checkpoint.started_at <= record.finished_at
    for run in at:
        record = records[run.id]
        assert record.started_at is not None and record.started_at >= moment.timestamp() * 1000 - 1
    assert {line[-1] for line in world.log.find("ran")} == {str(early.pid), str(late.pid)}


async def until_renewed(world: World, process: Process) -> None:
    """Waits until a worker has renewed its lease for longer than one lease."""
    store = await world.app.client.store()

    async def renewed() -> bool:
        mine = [worker for worker in await store.workers() if worker.pid == process.pid]
        assert mine, "it counts as dead"
        return mine[0].lease_until > mine[0].started_at + 2 * LEASE * 1000

    await until(renewed, "the lease was renewed")


async def test_a_dead_worker_with_a_clock_ahead_is_found_in_time(world: World) -> None:
    dying = shifted(world, HOUR)
    run = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", run.id, pid=dying.pid), "the run is at work")
    heir = shifted(world, -HOUR)
    await world.serves(heir)
    dying.kill()
    await until(lambda: world.log.count("ran", run.id, pid=heir.pid), "the run goes on", timeout=LEASE + 10)
    world.open_gate("gate")
    assert await run.result(timeout=30) == heir.pid
