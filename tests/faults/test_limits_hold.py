"""Limits, groups and schedules of the whole fleet: while processes disagree, while limits change, while workers die."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from faults.flows import GROUP_LIMIT, log
from faults.kit import World, until
from perdure.model import State

pytestmark = pytest.mark.anyio

RUNS = 400


class Visits:
    """Who is inside, by the log. Who was inside of a process that was killed is outside from then on."""

    def __init__(self, lines: list[list[str]]) -> None:
        self.most: Counter[str] = Counter()
        """The most visits at once, by group."""
        self.counts: list[int] = []
        """How many visits there were after each line."""
        inside: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for words in lines:
            match words:
                case ["in", n, group, pid]:
                    inside[group].add((n, pid))
                    self.most[group] = max(self.most[group], len(inside[group]))
                case ["out", n, group, pid]:
                    inside[group].discard((n, pid))
                case ["killed", dead, *_]:
                    for visits in inside.values():
                        visits.difference_update({visit for visit in visits if visit[1] == dead})
                case _:
                    pass
            self.counts.append(sum(map(len, inside.values())))


async def test_limits_and_groups_hold_while_workers_that_disagree_are_killed(world: World) -> None:
    await world.app.limits.set(queue="limited", running=7)
    # Each of them asks for something else, and has more slots than anybody may use.
    fleet = [world.worker(lease=1, concurrency=20, limit=limit) for limit in (3, 50, 1000)]
    await world.flows.visiting.start_many((n, f"group-{n % 9}" if n % 3 else "") for n in range(20))
    visitors = [
        world.spawn("visit", {"numbers": list(range(20 + part, RUNS, 4))}, env={GROUP_LIMIT: limit})
        for part, limit in enumerate(["1", "50", "1000", "2"])
    ]
    assert [await visitor.ended() for visitor in visitors] == [0, 0, 0, 0]
    chance = random.Random(5)
    for point in range(RUNS // 8, RUNS, RUNS // 8):
        await until(lambda point=point: world.log.count("out") >= point, f"{point} visits were over")
        place = chance.randrange(len(fleet))
        fleet[place].kill()
        log("killed", fleet[place].pid)
        fleet[place] = world.worker(lease=1, concurrency=20, limit=30)
    await world.ended(RUNS)
    assert await world.states() == {State.SUCCEEDED: RUNS}
    visits = Visits(world.log.lines)
    assert max(visits.counts) <= 7
    assert max(number for group, number in visits.most.items() if group != "-") == 2
    [record] = await world.app.limits.list()
    assert (record.limits.running, record.revision, record.running) == (7, 1, 0)
    assert "7 at a time stands" in world.errors()
    assert "code asks for 50 at a time of group group-1 in queue limited" in world.errors()


async def test_who_is_held_off_by_a_limit_goes_on_when_the_worker_that_fills_it_has_died(world: World) -> None:
    await world.app.limits.set(running=1)
    dying = await world.serving(lease=1)
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    heir = await world.serving(lease=60)
    after = await world.flows.leaf.start(1)
    dying.kill()
    await until(lambda: world.log.count("ran", held.id, pid=heir.pid), "the run goes on elsewhere")
    assert world.log.count("ran", after.id) == 0
    world.open_gate("gate")
    assert await held.result(timeout=30) == heir.pid
    assert await after.result(timeout=30) == 2


async def test_limits_change_under_load(world: World) -> None:
    for process in [world.worker(concurrency=30) for _ in range(2)]:
        await world.serves(process)
    await world.app.limits.set(queue="limited", running=4)
    await world.flows.visiting.start_many((n, "") for n in range(RUNS))
    stretches: list[tuple[int, int, int]] = []
    before = 4
    for limit in (9, 2, 12, 1, 20):
        await world.app.limits.set(queue="limited", running=limit)
        if limit < before:  # what had begun goes on: the limit shows when as many as could run before have come out
            await _visits_go_on(world, before)
        begin = len(world.log.lines)
        await _visits_go_on(world, 30)
        stretches.append((begin, len(world.log.lines), limit))
        before = limit
    await world.ended(RUNS)
    counts = Visits(world.log.lines).counts
    assert [limit for begin, end, limit in stretches if max(counts[begin:end]) > limit] == []
    assert max(counts) > 12


async def _visits_go_on(world: World, number: int) -> None:
    done = world.log.count("out") + number
    await until(lambda: world.log.count("out") >= done, f"{number} more visits were over")


async def test_a_schedule_fires_each_time_once_while_workers_are_killed(world: World) -> None:
    fleet = [world.worker(lease=1, every=0.2) for _ in range(5)]
    chance = random.Random(3)

    async def made(number: int) -> bool:
        return sum((await world.states()).values()) >= number

    for number in range(10, 70, 10):
        await until(lambda number=number: made(number), f"{number} times have come")
        place = chance.randrange(len(fleet))
        fleet[place].kill()
        fleet[place] = world.worker(lease=1, every=0.2)
    for process in fleet:
        process.terminate()
    for process in fleet:
        await process.ended()
    slots = sorted(record.id for record in await world.records())
    assert len(slots) == len(set(slots)) >= 60
    assert all(slot.startswith("leaves@") for slot in slots)
    await world.app.schedules.remove("leaves")
