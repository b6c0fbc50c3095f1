"""A cluster under load that loses a node, and one whose slots move."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from faults.conftest import MakeWorld
from faults.flows import journey_result
from faults.kit import World, until
from perdure.errors import StoreUnavailable
from perdure.model import State
from perdure.stores.redis.route import slot
from perdure.stores.redis.url import parse_url
from servers.redis import Cluster, cluster

pytestmark = pytest.mark.anyio

RUNS = 500
PARTITIONS = 6
CHILDREN = len(range(0, RUNS, 7))


@pytest.fixture
def replicated() -> Iterator[Cluster]:
    with cluster(3, replicas=1, settings={"cluster-replica-validity-factor": "0"}) as made:
        yield made


@pytest.fixture
def lasting() -> Iterator[Cluster]:
    kept = {"appendonly": "yes", "appendfsync": "always", "cluster-require-full-coverage": "no"}
    with cluster(3, settings=kept) as made:
        yield made


@pytest.fixture
def plain() -> Iterator[Cluster]:
    with cluster(3) as made:
        yield made


async def begun(world: World, part: float) -> None:
    steps = int((3 * RUNS + CHILDREN) * part)
    await until(lambda: world.log.count("ran") >= steps, f"{steps} steps were begun")


async def answers(world: World) -> bool:
    """Whether all partitions answer: a client is told when one of them does not."""
    try:
        await world.states()
    except StoreUnavailable:
        return False
    return True


async def all_right(world: World, runs: list[str]) -> None:
    """All runs ended once and right, and nothing that was kept ran again."""
    await world.ended(RUNS + CHILDREN, timeout=120)
    assert await world.states() == {State.SUCCEEDED: RUNS + CHILDREN}
    records = {record.id: record for record in await world.records()}
    assert [records[run].body for run in runs] == [str(journey_result(number)) for number in range(RUNS)]
    expected = Counter({(run, key): 1 for run in runs for key in ("add", "add#2", "double")})
    expected.update((record.id, "add") for record in records.values() if record.parent is not None)
    assert world.log.times_ran().keys() == expected.keys()
    assert world.log.ran_after_kept() == []


@pytest.mark.parametrize("partition", [0, 1], ids=["that of the first partition", "another"])
async def test_nothing_is_lost_when_a_node_fails_and_its_replica_takes_over(
    make_world: MakeWorld, replicated: Cluster, partition: int
) -> None:
    """The first partition also says which workers live."""
    url = f"{replicated.url}?partitions={PARTITIONS}&durability=replicated&replicas=1&wait_timeout=1000"
    world = make_world(url)
    for _ in range(2):
        await world.serving(lease=10, concurrency=12)
    runs = await world.flows.journey.start_many(range(RUNS))
    await begun(world, 0.2)
    key = parse_url(url).prefixes[partition]
    lost = replicated.owner(key)
    lost.kill9()
    await until(lambda: replicated.owner(key) is not lost, "the replica has taken over")
    lost.start()  # It comes back as the replica: without one nothing is as durable as the URL asks for.
    await until(lambda: answers(world), "the store answers")
    await all_right(world, [run.id for run in runs])


async def test_the_others_go_on_while_a_node_is_gone(make_world: MakeWorld, lasting: Cluster) -> None:
    """Runs of its partitions, with what their workers have to say of them, and children whose places are kept there,
    wait until it is back."""
    url = f"{lasting.url}?partitions={PARTITIONS}"
    world = make_world(url)
    for _ in range(2):
        await world.serving(lease=10, concurrency=12)
    runs = [run.id for run in await world.flows.journey.start_many(range(RUNS))]
    await begun(world, 0.1)
    prefixes = parse_url(url).prefixes
    owners = [lasting.owner(prefix) for prefix in prefixes]
    lost = next(owner for owner in owners if owner is not owners[0])
    homes = {run: slot(run.encode()) % PARTITIONS for run in runs}
    apart = {(run, "double") for number, run in enumerate(runs) if owners[homes[run]] is not lost and number % 7}
    lost.kill9()
    await until(lambda: apart <= world.log.times_ran().keys(), "all runs of other nodes went on")
    lost.start()
    await until(lambda: answers(world), "the store answers")
    await all_right(world, runs)


async def test_a_node_is_lost_and_slots_move_under_load(make_world: MakeWorld, replicated: Cluster) -> None:
    url = f"{replicated.url}?partitions={PARTITIONS}&durability=replicated&replicas=1&wait_timeout=1000"
    world = make_world(url)
    for _ in range(2):
        await world.serving(lease=10, concurrency=12)
    runs = await world.flows.journey.start_many(range(RUNS))
    await begun(world, 0.1)
    prefixes = parse_url(url).prefixes
    lost = replicated.owner(prefixes[1])
    lost.kill9()
    await until(lambda: replicated.owner(prefixes[1]) is not lost, "the replica has taken over")
    lost.start()
    await until(lambda: answers(world), "the store answers")
    for turn, prefix in enumerate(prefixes):
        await begun(world, 0.2 + 0.1 * turn)
        acting, source = replicated.acting(), replicated.owner(prefix)
        await asyncio.to_thread(replicated.move, slot(prefix), source, acting[acting.index(source) - 1])
    await all_right(world, [run.id for run in runs])


async def test_starts_are_made_while_slots_move_that_wait_for_replicas(
    make_world: MakeWorld, replicated: Cluster
) -> None:
    url = f"{replicated.url}?partitions={PARTITIONS}&durability=replicated&replicas=1&wait_timeout=5000"
    world = make_world(url)
    made = 0

    async def start_some() -> None:
        nonlocal made
        await asyncio.gather(*(world.flows.leaf.start(number) for number in range(20)))
        made += 20

    await start_some()
    for prefix in parse_url(url).prefixes:
        acting, source = replicated.acting(), replicated.owner(prefix)
        target = acting[acting.index(source) - 1]
        moving = asyncio.ensure_future(asyncio.to_thread(replicated.move, slot(prefix), source, target))
        while not moving.done():
            await start_some()
        await moving
        await start_some()
    assert len(await world.records()) == made


async def test_a_primary_hands_over_to_its_replica(make_world: MakeWorld, replicated: Cluster) -> None:
    world = make_world(f"{replicated.url}?partitions={PARTITIONS}&durability=replicated&replicas=1&wait_timeout=5000")
    await asyncio.gather(*(world.flows.leaf.start(number) for number in range(20)))
    before = replicated.acting()
    for server in replicated.servers:
        if server not in before:
            server.run("CLUSTER", "FAILOVER")
    await until(lambda: not any(server in before for server in replicated.acting()), "the replicas have taken over")
    for server in before:
        await asyncio.to_thread(server.wait_until_following)
    # Connections are as they were, and their servers have become replicas: they say where to go.
    await asyncio.gather(*(world.flows.leaf.start(number) for number in range(20)))
    assert len(await world.records()) == 40


async def test_slots_move_under_load(make_world: MakeWorld, plain: Cluster) -> None:
    url = f"{plain.url}?partitions={PARTITIONS}"
    world = make_world(url)
    for _ in range(2):
        await world.serving(lease=10, concurrency=12)
    runs = await world.flows.journey.start_many(range(RUNS))
    for turn, prefix in enumerate(parse_url(url).prefixes):
        await begun(world, 0.1 * (turn + 1))
        source = plain.owner(prefix)
        target = plain.primaries[(plain.primaries.index(source) + 1) % 3]
        await asyncio.to_thread(plain.move, slot(prefix), source, target)
    await all_right(world, [run.id for run in runs])
