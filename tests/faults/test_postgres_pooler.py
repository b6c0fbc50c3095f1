"""Workers and clients behind a real PgBouncer in transaction mode, with and without a way of their own for wake-ups."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from faults.conftest import MakeWorld
from faults.flows import journey_result
from faults.kit import World, until
from perdure.errors import StoreUnavailable
from perdure.model import State
from servers.pgbouncer import PROGRAM, Pooler
from servers.postgres import migrated_postgres

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")]

RUNS = 300


@pytest.fixture
def direct(tmp_path: Path) -> str:
    """The URL of the store, past the pooler."""
    return migrated_postgres(str(tmp_path))


@pytest.fixture
def pooler(direct: str) -> Iterator[Pooler]:
    pooler = Pooler(direct, connections=4)
    try:
        pooler.start()
        yield pooler
    finally:
        pooler.remove()


@pytest.fixture(params=["listening", "looking"])
def world(request: pytest.FixtureRequest, make_world: MakeWorld, pooler: Pooler, direct: str) -> World:
    """With wake-ups that come past the pooler, or none at all."""
    return make_world(f"{pooler.url}?listen={quote(direct, safe='')}" if request.param == "listening" else pooler.url)


async def test_runs_end_once_while_workers_are_killed(world: World) -> None:
    chance = random.Random(7)
    children = len(range(0, RUNS, 7))
    fleet = [world.worker(lease=2, concurrency=12) for _ in range(3)]
    runs = await world.flows.journey.start_many(range(RUNS))
    for point in (200, 400, 600):
        await until(lambda point=point: world.log.count("ran") >= point, f"{point} steps were begun")
        place = chance.randrange(len(fleet))
        fleet[place].kill()
        fleet[place] = world.worker(lease=2, concurrency=12)
    await world.ended(RUNS + children)
    assert await world.states() == {State.SUCCEEDED: RUNS + children}
    assert await asyncio.gather(*(run.result() for run in runs)) == [journey_result(number) for number in range(RUNS)]
    assert world.log.ran_after_kept() == []
    for process in fleet:
        await world.serves(process)
        process.terminate()
    for process in fleet:
        assert await process.ended() == 0
    await until(world.no_workers, "the dead are forgotten")


async def test_the_pooler_is_killed_and_started_again(world: World, pooler: Pooler) -> None:
    fleet = [await world.serving(lease=60, concurrency=12) for _ in range(2)]
    children = len(range(0, RUNS, 7))
    runs = await world.flows.journey.start_many(range(RUNS))
    asking = await world.flows.asking.start()
    results = [asyncio.ensure_future(run.result(timeout=60)) for run in runs[:20]]
    for point in (100, 300, 500):
        await until(lambda point=point: world.log.count("ran") >= point, f"{point} steps were begun")
        pooler.kill()
        with pytest.raises(StoreUnavailable, match=r"can't be reached|broke|closed"):
            await world.flows.leaf.start(1)
        await asyncio.to_thread(pooler.start)
    assert await asyncio.gather(*results) == [journey_result(number) for number in range(20)]
    for number in range(3):
        await asking.signal("number", number)
    assert await asking.result(timeout=30) == [0, 1, 2]
    await world.ended(RUNS + children + 1)
    assert set(world.log.times_ran().values()) == {1}
    assert {record.attempt for record in await world.records()} == {1}
    assert [process.code for process in fleet] == [None, None]
    said = "give its own URL as ?listen=" in world.errors()
    assert said != ("listen=" in world.url)  # to the one who can do something about it


async def test_what_a_worker_runs_is_cancelled_and_handed_on(world: World) -> None:
    leaving = await world.serving(lease=2, grace=1, concurrency=4)
    held = await world.flows.holding.start("gate")
    told = await world.flows.holding.start("other")
    for run in (held, told):
        await until(lambda run=run: world.log.count("ran", run.id), "the run is at work")
    await told.cancel("enough")
    await until(lambda: world.log.count("cancelled", told.id), "the run was told")
    heir = await world.serving(lease=2, concurrency=4)
    leaving.terminate()
    await until(lambda: world.log.count("ran", held.id, pid=heir.pid), "the run goes on elsewhere")
    assert await leaving.ended() == 0
    world.open_gate("gate")
    assert await held.result(timeout=30) == heir.pid
