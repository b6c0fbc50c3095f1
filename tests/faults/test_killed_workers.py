"""Workers that are killed: others go on with their runs, and what was kept does not happen again."""

from __future__ import annotations

import fcntl
import random
import time
from collections import Counter

import pytest

from faults.flows import journey_result
from faults.kit import World, until
from perdure.model import State

pytestmark = pytest.mark.anyio

RUNS = 2000
KILLS = 8
PROCESSES = 4
CONCURRENCY = 12


@pytest.mark.parametrize("seed", [1])
async def test_two_thousand_runs_end_once_and_right_while_workers_are_killed(world: World, seed: int) -> None:
    chance = random.Random(seed)
    children = len(range(0, RUNS, 7))
    steps = 3 * RUNS + children
    # A kill falls due when so many steps were begun: points in the work, not in time.
    kills = sorted(chance.sample(range(steps // 20, steps * 9 // 10), KILLS))
    fleet = [world.worker(lease=2, concurrency=CONCURRENCY) for _ in range(PROCESSES)]
    runs = await world.flows.journey.start_many(range(RUNS))
    for point in kills:
        await until(lambda point=point: world.log.count("ran") >= point, f"{point} steps were begun")
        place = chance.randrange(PROCESSES)
        fleet[place].kill()
        fleet[place] = world.worker(lease=2, concurrency=CONCURRENCY)
    await world.ended(RUNS + children)
    for process in fleet:
        await world.serves(process)  # One that was killed last may just begin.
        process.terminate()
    for process in fleet:
        assert await process.ended() == 0

    assert await world.states() == {State.SUCCEEDED: RUNS + children}
    records = {record.id: record for record in await world.records()}
    for number, run in enumerate(runs):
        assert records[run.id].body == str(journey_result(number))
    ran = world.log.times_ran()
    expected = Counter({(run.id, key): 1 for run in runs for key in ("add", "add#2", "double")})
    expected.update((record.id, "add") for record in records.values() if record.parent is not None)
    assert ran.keys() == expected.keys()  # each at least once
    assert world.log.ran_after_kept() == []  # what was kept, once
    cut_off = sum(ran.values()) - steps
    assert cut_off <= KILLS * CONCURRENCY * 2  # and only what was in hand at a kill, again
    assert max(record.attempt for record in records.values()) <= 1 + KILLS
    for run in chance.sample(runs, 50):
        number = runs.index(run)
        keys = {"add", "add#2", "double"} | ({"sleep"} if number % 5 == 0 else set())
        assert await world.keys(run.id) == keys | ({"leaf", "leaf.result"} if number % 7 == 0 else set())
    await until(world.no_workers, "the dead are forgotten")


async def test_a_run_goes_on_elsewhere_within_a_lease_after_kill_nine(world: World) -> None:
    lease = 2.0
    run = await world.flows.holding.start("gate")
    dying = await world.serving(lease=lease)
    await until(lambda: world.log.count("ran", run.id, pid=dying.pid), "the run is at work")
    heir = await world.serving(lease=lease)
    dying.kill()
    died = time.monotonic()
    await until(lambda: world.log.count("ran", run.id, pid=heir.pid), "the run goes on")
    assert time.monotonic() - died < lease + 5
    world.open_gate("gate")
    assert await run.result(timeout=30) == heir.pid
    record = await world.record(run.id)
    assert (record.attempt, record.state) == (2, State.SUCCEEDED)


async def test_the_runs_of_the_only_worker_wait_for_the_next_one(world: World) -> None:
    run = await world.flows.holding.start("gate")
    dying = await world.serving(lease=0.5)
    await until(lambda: world.log.count("ran", run.id), "the run is at work")
    dying.kill()
    world.open_gate("gate")
    heir = await world.serving(lease=0.5)
    assert await run.result(timeout=30) == heir.pid
    assert (await world.record(run.id)).attempt == 2


async def test_the_process_of_a_step_ends_with_its_worker(world: World) -> None:
    """Or it would be at work still when the step runs elsewhere."""
    run = await world.flows.apart.start("gate")
    dying = await world.serving(lease=1)
    [[*_, pid]] = await until(lambda: world.log.find("process", "gate", dying.pid), "the step is at work")
    with (world.gates / f"gate.{pid}.lock").open("w") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        dying.kill()

        def free() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        await until(free, "its process is no more")
    heir = await world.serving(lease=1)
    await until(lambda: world.log.find("process", "gate", heir.pid), "the step runs elsewhere")
    world.open_gate("gate")
    assert await run.result(timeout=30) == heir.pid
