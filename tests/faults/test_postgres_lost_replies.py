"""Connections to PostgreSQL that break off after the commit: what was done is found done, and nothing is done twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from faults.conftest import MakeWorld
from faults.flows import journey_result
from faults.kit import World, persistently, until
from faults.test_lost_replies import LEASE, start_journeys
from perdure.errors import StoreUnavailable
from perdure.model import Signal, Start, State
from perdure.stores.base import Registration
from perdure.stores.exchange import Exchange, Settle, To
from servers.postgres import migrated_postgres
from servers.proxy import Proxy

pytestmark = pytest.mark.anyio

WRITES = ("exchange", "enqueue", "enqueue_all", "deliver", "register", "take_back", "retire", "cancel")


class Losses:
    """Says which replies are lost: a share of those to a function's calls, or the next one."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self.share = 0.0
        self.next = ""

    def __call__(self, statement: str) -> bool:
        called = function(statement)
        if called and called == self.next:
            self.next = ""
            return True
        return called in WRITES and self._random.random() < self.share


def function(statement: str) -> str:
    """The function of ours that a statement calls."""
    return statement.partition(".")[2].partition("(")[0]


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
async def proxy(losses: Losses, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    async with Proxy(migrated_postgres(str(tmp_path_factory.mktemp("store"))), losses) as proxy:
        yield proxy


@pytest.fixture
def world(proxy: Proxy, make_world: MakeWorld) -> World:
    return make_world(proxy.url)


def lost(proxy: Proxy) -> Counter[str]:
    counted: Counter[str] = Counter()
    for statement, times in proxy.lost.items():
        counted[function(statement)] += times
    return counted


async def test_every_fifth_reply_is_lost(world: World, proxy: Proxy, losses: Losses) -> None:
    await world.app.client.store()
    losses.share = 0.2
    runs = 150
    children = len(range(0, runs, 7))
    handles = await start_journeys(world, runs)
    worker = world.app.worker(concurrency=20, lease=LEASE, grace=5)
    await persistently(worker.start)
    try:
        results = await asyncio.gather(*(handle.result(timeout=60) for handle in handles))
        await world.ended(runs + children)
        await until(lambda: not worker.runtime.pump.owners, "the worker has forgotten all runs")
    finally:
        losses.share = 0.0
        await worker.stop()
    assert results == [journey_result(number) for number in range(runs)]
    assert lost(proxy)["exchange"] > 10
    assert lost(proxy)["enqueue"] + lost(proxy)["enqueue_all"] > 10
    assert set(world.log.times_ran().values()) == {1}
    assert world.log.times_ran().total() == 3 * runs + children
    assert {record.attempt for record in await world.records()} == {1}


async def test_an_enqueue_whose_reply_is_lost_has_made_its_runs(world: World, losses: Losses) -> None:
    store = await world.app.client.store()
    starts = [Start(f"r{number}", "leaf", "default", f'{{"n":{number}}}') for number in range(10)]
    losses.next = "enqueue"
    with pytest.raises(StoreUnavailable):
        await store.enqueue(starts)
    assert await world.states() == {State.QUEUED: 10}
    assert {(started.existed, started.same) for started in await store.enqueue(starts)} == {(True, True)}
    assert await world.states() == {State.QUEUED: 10}


async def test_what_a_lost_exchange_has_claimed_and_settled_is_found_again(world: World, losses: Losses) -> None:
    store = await world.app.client.store()
    await store.enqueue([Start(f"r{number}", "leaf", "default", "[1]") for number in range(6)])
    worker = await store.register(
        Registration(name="w", host="", pid=0, queues=["default"], workflows=["leaf"], concurrency=3, lease=600_000)
    )
    first = Exchange(worker, 1, slots=3)
    losses.next = "exchange"
    with pytest.raises(StoreUnavailable):
        await store.exchange(first)
    assert await world.states() == {State.RUNNING: 3, State.QUEUED: 3}
    first.repeated = True
    claims = (await store.exchange(first)).claims
    assert [claim.id for claim in claims] == ["r0", "r1", "r2"]
    assert await world.states() == {State.RUNNING: 3, State.QUEUED: 3}

    second = Exchange(
        worker, 2, settles=[Settle(claim.ref, claim.token, To.SUCCEEDED, "7") for claim in claims], slots=3
    )
    losses.next = "exchange"
    with pytest.raises(StoreUnavailable):
        await store.exchange(second)
    assert await world.states() == {State.SUCCEEDED: 3, State.RUNNING: 3}
    second.repeated = True
    reply = await store.exchange(second)
    assert reply.refused == []
    assert [claim.id for claim in reply.claims] == ["r3", "r4", "r5"]
    assert await world.states() == {State.SUCCEEDED: 3, State.RUNNING: 3}


@pytest.mark.parametrize("verb", ["deliver", "cancel", "retire"])
async def test_other_calls_are_safe_to_repeat(world: World, losses: Losses, verb: str) -> None:
    store = await world.app.client.store()
    await store.enqueue([Start("r", "asking", "default", "{}")])
    worker = await store.register(
        Registration(name="w", host="", pid=0, queues=["default"], workflows=[], concurrency=1, lease=600_000)
    )
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "deliver": lambda: store.signal(Signal("s", "r", "number", "1")),
        "cancel": lambda: store.cancel("r", "enough"),
        "retire": lambda: store.retire(worker),
    }
    losses.next = verb
    with pytest.raises(StoreUnavailable):
        await calls[verb]()
    assert not losses.next
    await calls[verb]()
    arrived = await store.signals("r")
    assert len(arrived) == (verb == "deliver")
    assert await world.states() == {State.CANCELLED if verb == "cancel" else State.QUEUED: 1}
    assert await world.no_workers() == (verb == "retire")
