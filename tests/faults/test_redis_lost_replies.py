"""Connections to Redis that break off after a function ran: what was done is found done, and nothing is done twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from faults.conftest import MakeWorld
from faults.flows import journey_result
from faults.kit import PATIENCE, World, persistently, until
from faults.test_lost_replies import LEASE, start_journeys
from perdure.errors import StoreUnavailable
from perdure.model import Signal, Start, State
from perdure.stores.base import Registration, Topic
from perdure.stores.exchange import Exchange, Settle, To
from perdure.stores.redis.listen import channel
from perdure.stores.redis.url import parse_url
from servers.proxy import RedisProxy
from servers.redis import redis, redis_url

pytestmark = pytest.mark.anyio

WRITES = ("exchange", "enqueue", "signal", "register", "reclaim", "retire", "cancel")


class Losses:
    """Says which replies are lost: a share of those to calls that write, the next one of a function, or all."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self.share = 0.0
        self.next = ""
        self.always = ""

    def __call__(self, function: str) -> bool:
        if function == self.next:
            self.next = ""
            return True
        return function == self.always or (function in WRITES and self._random.random() < self.share)


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
async def proxy(losses: Losses, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RedisProxy]:
    async with RedisProxy(redis_url(str(tmp_path_factory.mktemp("store"))), losses) as proxy:
        yield proxy


@pytest.fixture
def world(proxy: RedisProxy, make_world: MakeWorld) -> World:
    return make_world(proxy.url)


async def test_every_fifth_reply_is_lost(world: World, proxy: RedisProxy, losses: Losses) -> None:
    await world.app.client.store()
    losses.share = 0.2
    runs = 150
    children = len(range(0, runs, 7))
    handles = await start_journeys(world, runs)
    worker = world.app.worker(concurrency=20, lease=LEASE, grace=5)
    await persistently(worker.start)
    try:
        results = await asyncio.gather(*(handle.result(timeout=60) for handle in handles))
        await persistently(lambda: world.ended(runs + children))  # Who looks shares the connection that is cut.
        await until(lambda: not worker.runtime.pump.owners, "the worker has forgotten all runs")
    finally:
        losses.share = 0.0
        await worker.stop()
    assert results == [journey_result(number) for number in range(runs)]
    assert proxy.lost["exchange"] > 10
    assert proxy.lost["enqueue"] > 10
    assert set(world.log.times_ran().values()) == {1}
    assert world.log.times_ran().total() == 3 * runs + children
    assert {record.attempt for record in await world.records()} == {1}


async def test_an_enqueue_whose_reply_is_lost_has_made_its_runs(world: World, losses: Losses) -> None:
    store = await world.app.client.store()
    starts = [Start(f"r{number}", "leaf", "default", f'{{"n":{number}}}') for number in range(10)]
    losses.next = "enqueue"
    with pytest.raises(StoreUnavailable, match="broke the connection off"):
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

    settles = [Settle(claim.ref, claim.token, To.SUCCEEDED, "7") for claim in claims]
    second = Exchange(worker, 2, settles=settles, slots=3)
    losses.next = "exchange"
    with pytest.raises(StoreUnavailable):
        await store.exchange(second)
    assert await world.states() == {State.SUCCEEDED: 3, State.RUNNING: 3}
    second.repeated = True
    reply = await store.exchange(second)
    assert reply.refused == []
    assert [claim.id for claim in reply.claims] == ["r3", "r4", "r5"]
    assert await world.states() == {State.SUCCEEDED: 3, State.RUNNING: 3}


@pytest.mark.parametrize("verb", ["signal", "cancel", "retire", "open_batch"])
async def test_other_calls_are_safe_to_repeat(world: World, losses: Losses, verb: str) -> None:
    store = await world.app.client.store()
    await store.enqueue([Start("r", "asking", "default", "{}")])
    worker = await store.register(
        Registration(name="w", host="", pid=0, queues=["default"], workflows=[], concurrency=1, lease=600_000)
    )
    items = [Start(f"i{number}", "leaf", "default", "[1]") for number in range(3)]
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "signal": lambda: store.signal(Signal("s", "r", "number", "1")),
        "cancel": lambda: store.cancel("r", "enough"),
        "retire": lambda: store.retire(worker),
        "open_batch": lambda: store.open_batch("b", items, None),
    }
    losses.next = verb
    with pytest.raises(StoreUnavailable):
        await calls[verb]()
    assert not losses.next
    await calls[verb]()
    assert len(await store.signals("r")) == (verb == "signal")
    assert await world.no_workers() == (verb == "retire")
    states = await world.states()
    assert states.pop(State.CANCELLED, 0) == (verb == "cancel")
    assert states == ({State.QUEUED: 4} if verb == "open_batch" else {} if verb == "cancel" else {State.QUEUED: 1})


@pytest.mark.parametrize(
    "message",
    [b"", b"r1", b'{"v":0,"runs":[]}', msgspec.msgpack.encode({"v": 2, "all": ["more"]}), b"\xc1\xff\x00"],
    ids=["empty", "text", "json", "newer", "garbage"],
)
async def test_a_message_of_another_version_is_a_hint_all_the_same(
    world: World, losses: Losses, monkeypatch: pytest.MonkeyPatch, message: bytes
) -> None:
    """As during a rolling deploy: it is another program's function that tells of the end."""
    monkeypatch.setattr("perdure.client._POLL", 3600.0)
    run = await world.flows.holding.start("gate")
    result = asyncio.ensure_future(run.result(timeout=60))
    await world.serving(lease=60)
    await until(lambda: world.log.count("ran", run.id), "the run is at work")
    losses.always = "message"
    world.open_gate("gate")
    await world.ended(1)
    assert not result.done()
    losses.always = ""
    location = parse_url(world.url)
    assert redis().run("PUBLISH", channel(location.prefixes[0], Topic.ENDED), message) > 0
    assert await result


async def test_without_wake_ups_work_is_found_by_looking(world: World, proxy: RedisProxy, losses: Losses) -> None:
    losses.always = "message"
    await world.serving(lease=5)
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*(world.flows.leaf.run(number) for number in range(20)))
    assert results == list(range(1, 21))
    asking = await world.flows.asking.start()
    for number in range(3):  # to a run that is parked
        await asking.signal("number", number)
    assert await asking.result(timeout=30) == [0, 1, 2]
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    await held.cancel("enough")
    await until(lambda: world.log.count("cancelled", held.id), "the run was told")
    assert proxy.lost["message"] > 5, "there were no wake-ups to lose"
