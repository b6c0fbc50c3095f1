"""Workers that stand still, or seem to: only one that lost its lease loses its runs."""

from __future__ import annotations

import pytest

from faults.kit import Process, World, until
from perdure.model import State

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("thread", [False, True], ids=["async", "thread"])
async def test_a_worker_stopped_for_longer_than_its_lease_is_refused_and_begins_anew(
    world: World, thread: bool
) -> None:
    late = await world.serving(lease=1, concurrency=2)
    run = await world.flows.holding.start("gate", thread)
    await until(lambda: world.log.count("ran", run.id, pid=late.pid), "the run is at work")
    late.freeze()
    heir = await world.serving(lease=1, concurrency=2)
    await until(lambda: world.log.count("ran", run.id, pid=heir.pid), "the run goes on elsewhere")
    late.thaw()
    await until(lambda: world.log.count("cancelled", run.id, pid=late.pid), "the late worker's step is cancelled")
    assert (await world.record(run.id)).state is State.RUNNING  # as the heir's
    world.open_gate("gate", heir)
    assert await run.result(timeout=30) == heir.pid
    assert (await world.record(run.id)).attempt == 2
    assert world.log.count("cancelled", pid=heir.pid) == 0

    heir.terminate()
    await heir.ended()
    again = await world.flows.holding.start("again")
    world.open_gate("again")
    assert await again.result(timeout=30) == late.pid
    assert late.code is None


async def test_what_a_late_worker_has_finished_meanwhile_does_not_count(world: World) -> None:
    late = await world.serving(lease=1, concurrency=1)
    run = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", run.id, pid=late.pid), "the run is at work")
    late.freeze()
    heir = await world.serving(lease=1, concurrency=1)
    await until(lambda: world.log.count("ran", run.id, pid=heir.pid), "the run goes on elsewhere")
    world.open_gate("gate", late)  # when it wakes, its step is done at once
    late.thaw()
    other = await world.flows.holding.start("other", False)
    world.open_gate("other")
    assert await other.result(timeout=30) == late.pid  # it has begun anew, and has said what it had to say
    assert (await world.record(run.id)).state is State.RUNNING
    world.open_gate("gate", heir)
    assert await run.result(timeout=30) == heir.pid


async def test_a_step_that_blocks_the_event_loop_for_three_leases_is_not_taken_away(world: World) -> None:
    lease = 1.0
    asleep = await world.serving(lease=lease, queues=["asleep"])
    spinning = await world.serving(lease=lease, queues=["spinning"])
    runs = {
        asleep: await world.flows.blocking.options(queue="asleep").start(3 * lease, False),
        spinning: await world.flows.blocking.options(queue="spinning").start(3 * lease, True),
    }
    for run in runs.values():
        await until(lambda run=run: world.log.count("ran", run.id), "the step is at work")
    await world.serving(lease=lease, queues=["asleep", "spinning"])
    for process, run in runs.items():
        assert await run.result(timeout=30) == process.pid
        assert world.log.count("ran", run.id) == 1
        record = await world.record(run.id)
        assert (record.attempt, record.crashes) == (1, 0)


async def test_a_call_that_holds_the_interpreters_lock_for_longer_than_the_lease_loses_it(world: World) -> None:
    """No thread runs then, the one that renews the lease included."""
    late = await world.serving(lease=1)
    run = await world.flows.gripping.start(4)
    await until(lambda: world.log.count("ran", run.id, pid=late.pid), "the call is at work")
    heir = await world.serving(lease=1)
    assert await run.result(timeout=30) == heir.pid
    assert (await world.record(run.id)).attempt == 2
    heir.terminate()
    await heir.ended()
    again = await world.flows.holding.start("again")
    world.open_gate("again")
    assert await again.result(timeout=30) == late.pid  # it has begun anew


async def test_a_step_that_ends_its_process_poisons_only_itself(world: World) -> None:
    poison = await world.flows.poison.start()
    long = await world.flows.working.options(timeout=120).start(100)
    short = await world.flows.leaf.start_many(range(20))
    deaths = 0
    while (state := (await world.record(poison.id)).state) is not State.FAILED:
        assert not state.final
        worker = world.worker(lease=0.5, concurrency=50)

        async def over(worker: Process = worker) -> bool:
            return worker.code is not None or (await world.record(poison.id)).state is State.FAILED

        await until(over, "the worker died, or the poison was found out")
        deaths += worker.code is not None
    # It is given up at its third crash, or later when others went down with it as often: until it stands alone.
    assert 3 <= deaths < 3 * 4
    error = (await poison.status()).error
    assert error is not None and error.type == "perdure.errors:Poisoned"
    assert f"{deaths} times" in error.message
    if world.processes[-1].code is not None:
        await world.serving(lease=0.5)
    for number, run in enumerate(short):
        assert await run.result(timeout=30) == number + 1
    assert await long.result(timeout=60) == 100
