"""A primary is lost, a replica takes over: what it had not heard of yet is gone, unless the URL asks for replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from faults.conftest import MakeWorld
from faults.flows import journey_result
from faults.kit import World, persistently, until
from perdure.errors import RunNotFound, StoreUnavailable
from perdure.model import State
from servers import redis as servers
from servers.redis import Sentinels

pytestmark = pytest.mark.anyio

RUNS = 600
SAFE = "durability=replicated&replicas=1&wait_timeout=1000"


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    """A primary with two replicas: when it is gone there is one that takes over, and one that follows that."""
    with servers.sentinel(replicas=2) as made:
        yield made


@pytest.fixture
async def make(make_world: MakeWorld, sentinels: Sentinels) -> AsyncIterator[MakeWorld]:
    """Makes a world on them, with options of the URL."""
    yield lambda options: make_world(f"{sentinels.url}?connect_timeout=2&{options}")
    for server in sentinels.servers:
        server.freeze(frozen=False)


async def promote(sentinels: Sentinels) -> None:
    """Kills the primary while its replicas have missed what it did lately, and waits for the one that takes over."""
    gone = sentinels.acting()
    gone.kill9()
    for server in sentinels.replicas:
        server.freeze(frozen=False)

    def another() -> bool:
        return sentinels.acting() is not gone

    await until(another, "another server takes over")


def cut_off(sentinels: Sentinels) -> None:
    """From now on the replicas, which have all until now, hear of nothing."""
    assert sentinels.primary.run("WAIT", len(sentinels.replicas), 10_000) == len(sentinels.replicas)
    for server in sentinels.replicas:
        server.freeze()
    sentinels.primary.run("CLIENT", "KILL", "TYPE", "replica")  # What it sends would come through when they go on.


@pytest.mark.parametrize("options", ["", SAFE], ids=["default", "replicated"])
async def test_the_primary_is_lost_under_load(make: MakeWorld, sentinels: Sentinels, options: str) -> None:
    world = make(options)
    await world.serving(lease=60, concurrency=20)
    started: dict[str, int] = {}

    async def start() -> None:
        for number in range(RUNS):
            run = await persistently(lambda n=number: world.flows.journey.options(id=f"r{n}").start(n))
            started[run.id] = number

    starting = asyncio.ensure_future(start())
    await until(lambda: world.log.count("ran") > RUNS / 3, "the runs are at work")
    await asyncio.to_thread(sentinels.fail_over)
    await starting
    kept: list[str] = []
    for run_id, number in started.items():
        try:
            assert await world.app.run(run_id).result(timeout=60) == journey_result(number)
        except RunNotFound:
            continue
        kept.append(run_id)
    # Whatever the new primary knows of has ended, and is no worker's any more.
    states = await world.states()
    assert set(states) == {State.SUCCEEDED}
    if options:
        assert len(kept) == RUNS
        assert world.log.ran_after_kept() == []


async def test_what_no_replica_has_is_lost_by_default(make: MakeWorld, sentinels: Sentinels) -> None:
    """A start is gone. A run whose end is gone ends once more, though its worker lives and has forgotten it. A worker
    of which nothing is known begins anew.
    """
    world = make("")
    worker = await world.serving(lease=60)
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    cut_off(sentinels)
    lost = await world.flows.asking.start()
    world.open_gate("gate")
    assert await held.result(timeout=30) == worker.pid
    fleet = [await world.serving(lease=60, queues=["elsewhere"]) for _ in range(2)]
    await promote(sentinels)
    assert await persistently(lambda: held.result(timeout=30)) == worker.pid
    await until(lambda: world.log.count("ran", held.id) == 2, "it was done once more")
    record = await world.record(held.id)
    assert (record.state, record.attempt, record.crashes) == (State.SUCCEEDED, 1, 0)
    with pytest.raises(RunNotFound):
        await lost.signal("number", 1)
    await until(lambda: world.errors().count("begins anew") == len(fleet), "the workers say so")
    await until(lambda: registered(world, 1 + len(fleet)), "all of them are there")
    run = await world.flows.leaf.options(queue="elsewhere").start(1)
    assert await run.result(timeout=30) == 2


async def registered(world: World, count: int) -> bool:
    return len(await (await world.app.client.store()).workers()) == count


async def test_a_start_that_no_replica_has_is_no_start_where_replicas_are_asked_for(
    make: MakeWorld, sentinels: Sentinels
) -> None:
    world = make(SAFE)
    await world.flows.leaf.start(1)
    cut_off(sentinels)
    start = world.flows.leaf.options(id="after")
    with pytest.raises(
        StoreUnavailable, match=r"had a write on 0 of the 1 replicas .* within 1000 ms \(wait_timeout\)"
    ):
        await start.start(2)
    await promote(sentinels)
    run = await persistently(lambda: start.start(2))
    await world.serving(lease=60)
    assert await run.result(timeout=30) == 3
