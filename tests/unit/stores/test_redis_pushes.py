"""A start hands its run to a worker that waits; a namespace that newer code keeps is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from conformance.kit import Worker, start, worker
from perdure.errors import SchemaTooNew, StoreUnavailable
from perdure.model import Limits, Scope, ScopeKind
from perdure.stores import open_store
from perdure.stores.base import Store, Subscription, Topic
from perdure.stores.exchange import Claim, Exchange, Settle, To
from perdure.stores.redis import RedisStore, parse_url
from perdure.stores.redis.pushes import VERSION, Hand
from servers.redis import redis, until

PATIENCE = 30

pytestmark = pytest.mark.anyio


@pytest.fixture
def url() -> str:
    return redis().namespace()


@pytest.fixture
async def client(url: str) -> AsyncIterator[Store]:
    """Who starts runs, in another process, as it were."""
    store = open_store(url)
    await store.open()
    yield store
    await store.close()


class Waiting:
    """A worker that listens, and has nothing to do."""

    def __init__(self, store: RedisStore, ada: Worker, subscription: Subscription, woken: asyncio.Event) -> None:
        self.store = store
        self.ada = ada
        self.subscription = subscription
        self.woken = woken

    async def park(self, slots: int) -> None:
        """Has the store know that it waits with so many free slots."""
        assert not (await self.ada.exchange(slots=slots)).claims
        self.woken.clear()

    async def wakes(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.woken.wait()
        self.woken.clear()


@pytest.fixture
async def waiting(url: str) -> AsyncIterator[Waiting]:
    store, woken = RedisStore(parse_url(url)), asyncio.Event()
    await store.open()
    ada = await worker(store)
    subscription = await store.subscribe(Topic.WORK, woken.set)
    yield Waiting(store, ada, subscription, woken)
    await subscription.close()
    await store.close()


async def state(store: Store, run_id: str) -> str:
    record = await store.load(run_id)
    assert record is not None
    return record.state


async def test_a_run_comes_without_a_call(client: Store, waiting: Waiting) -> None:
    await waiting.park(2)
    await client.enqueue([start("a")])
    assert await state(client, "a") == "running"
    await waiting.wakes()
    calls = waiting.store.calls
    (claim,) = (await waiting.ada.exchange(slots=2)).claims
    assert (claim.id, claim.attempt) == ("a", 1)
    assert waiting.store.calls == calls
    reply = await waiting.ada.exchange(slots=2, settles=[Settle(claim.ref, claim.token, To.SUCCEEDED, "1")])
    assert not reply.claims and not reply.refused
    assert await state(client, "a") == "succeeded"


async def test_no_more_come_than_there_are_slots(client: Store, waiting: Waiting) -> None:
    await waiting.park(2)
    await client.enqueue([start(run_id) for run_id in "abc"])
    assert [await state(client, run_id) for run_id in "abc"] == ["running", "running", "queued"]
    await waiting.wakes()
    first = (await waiting.ada.exchange(slots=2)).claims
    assert [claim.id for claim in first] == ["a", "b"]
    assert len({claim.token for claim in first}) == 2
    assert not (await waiting.ada.exchange(slots=0)).claims
    assert [claim.id for claim in (await waiting.ada.exchange(slots=1)).claims] == ["c"]


async def test_a_push_that_is_lost_comes_with_the_next_exchange(client: Store, waiting: Waiting) -> None:
    await waiting.park(2)
    await client.enqueue([start("a")])
    # Its message may be on its way, and is lost with the connection, unless it was read already.
    redis().run("CLIENT", "KILL", "TYPE", "PUBSUB")
    assert await state(client, "a") == "running"
    again = [*(await waiting.ada.exchange(slots=2)).claims, *(await waiting.ada.exchange(slots=2)).claims]
    assert [claim.id for claim in again] == ["a"]
    reply = await waiting.ada.exchange(slots=2, settles=[Settle(again[0].ref, again[0].token, To.SUCCEEDED, "1")])
    assert not reply.refused and not reply.claims


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages of pushes, of which none arrives."""
    messages: list[bytes] = []
    monkeypatch.setattr(Hand, "receive", lambda _, message: messages.append(message))
    return messages


async def test_a_push_on_its_way_has_a_slot(client: Store, waiting: Waiting, lost: list[bytes]) -> None:
    await waiting.park(1)
    await client.enqueue([start("a"), start("b")])
    assert [claim.id for claim in (await waiting.ada.exchange(slots=1)).claims] == ["a"]
    assert await state(client, "b") == "queued"


async def test_a_push_is_no_claim_of_the_exchange_that_is_repeated(
    client: Store, waiting: Waiting, lost: list[bytes]
) -> None:
    await waiting.park(2)
    await client.enqueue([start("a")])
    assert [claim.id for claim in (await waiting.ada.repeat()).claims] == ["a"]


async def test_a_push_that_other_code_has_sent_is_asked_for(
    client: Store, waiting: Waiting, lost: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    await waiting.park(2)
    await client.enqueue([start("a")])
    async with asyncio.timeout(PATIENCE):
        while not lost:
            await asyncio.sleep(0)
    monkeypatch.undo()
    push = msgspec.msgpack.decode(lost[0])
    waiting.store._hands._hands[waiting.ada.id].receive(msgspec.msgpack.encode(push | {"v": VERSION + 1}))
    calls = waiting.store.calls
    assert [claim.id for claim in (await waiting.ada.exchange(slots=2)).claims] == ["a"]
    assert waiting.store.calls > calls


async def test_what_would_overtake_others_is_not_pushed(client: Store, waiting: Waiting) -> None:
    await waiting.park(2)
    await client.enqueue([start("long", input='"' + 70_000 * "x" + '"')])
    await client.enqueue([start("short")])
    assert [await state(client, run_id) for run_id in ("long", "short")] == ["queued", "queued"]


async def test_what_is_pushed_to_one_that_is_busy_comes_as_well(client: Store, waiting: Waiting, url: str) -> None:
    # A server that took over may have it as a worker that waits, and messages may be lost.
    assert not (await waiting.ada.exchange(slots=0)).claims
    parked = msgspec.msgpack.encode({"slots": 1, "serial": 1})
    redis().run("HSET", parse_url(url).prefixes[0] + b":parked", waiting.ada.id, parked)
    await client.enqueue([start("a")])
    redis().run("CLIENT", "KILL", "TYPE", "PUBSUB")
    assert await state(client, "a") == "running"
    heard = [await waiting.ada.exchange(slots=0), await waiting.ada.exchange(slots=0, owned=[])]
    assert [claim.id for reply in heard for claim in reply.claims] == ["a"]


@pytest.mark.parametrize("message", [b"1", b"\x81\xa1v\x02", b"\xff"])
async def test_a_push_of_another_version_is_looked_for(waiting: Waiting, url: str, message: bytes) -> None:
    await waiting.park(2)
    channel = parse_url(url).prefixes[0] + f":push:{waiting.ada.id}".encode()
    assert redis().run("PUBLISH", channel, message) == 1
    await waiting.wakes()
    assert not (await waiting.ada.exchange(slots=2)).claims


@pytest.mark.parametrize("version", [0, 2])
async def test_an_end_that_another_version_tells_of_is_asked_for(client: Store, url: str, version: int) -> None:
    """It may mean something else by the same words."""
    woken = asyncio.Event()
    subscription = await client.subscribe(Topic.ENDED, woken.set)
    await client.enqueue([start("a")])
    told = {"v": version, "runs": [{"id": "a", "state": "succeeded", "body": "1"}]}
    assert redis().run("PUBLISH", parse_url(url).prefixes[0] + b":ended", msgspec.msgpack.encode(told)) == 1
    async with asyncio.timeout(PATIENCE):
        await woken.wait()
    assert await client.ended(["a"]) == []
    await subscription.close()


async def test_whether_the_store_answers_is_not_answered_by_a_push(client: Store, waiting: Waiting) -> None:
    await waiting.park(5)
    await client.enqueue([start("a")])
    await waiting.wakes()
    calls = waiting.store.calls
    assert [claim.id for claim in (await waiting.ada.exchange()).claims] == ["a"]
    assert waiting.store.calls > calls


async def test_no_two_pushes_have_one_token_though_replies_are_lost(
    client: Store, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await waiting.park(1)
    session = waiting.store._db
    call = session.call

    async def lost(name: str, *args: Any, **options: Any) -> Any:
        await call(name, *args, **options)
        raise StoreUnavailable("the reply is lost")

    asked = Exchange(waiting.ada.id, 1000, slots=500)
    for turn in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(session, "call", lost)
            with pytest.raises(StoreUnavailable):
                await waiting.store.exchange(asked)
        asked.repeated = True
        for number in range(64):
            await client.enqueue([start(f"{turn}-{number}")])
    claims: list[Claim] = []
    while len(claims) < 192:
        claims += (await waiting.store.exchange(asked)).claims
        asked = Exchange(waiting.ada.id, asked.serial + 1, slots=500)
    assert len({claim.token for claim in claims}) == 192


async def test_an_incarnation_that_is_gone_is_given_nothing_more(client: Store, waiting: Waiting) -> None:
    await waiting.park(5)
    assert await client.bury(waiting.ada.name) == 0
    assert (await waiting.ada.exchange(slots=5)).gone
    assert waiting.store._hands._hands == {}


async def test_what_limits_or_others_keep_is_not_pushed(client: Store, waiting: Waiting) -> None:
    await waiting.park(2)
    await client.set_limits(Scope(ScopeKind.QUEUE, "default"), Limits(running=1), "test")
    await client.enqueue([start("a"), start("b")])
    assert [await state(client, run_id) for run_id in "ab"] == ["queued", "queued"]
    assert [claim.id for claim in (await waiting.ada.exchange(slots=2)).claims] == ["a"]


async def test_a_long_input_is_not_pushed(client: Store, waiting: Waiting) -> None:
    await waiting.park(2)
    for run_id, length, pushed in (("short", 60_000, "running"), ("long", 70_000, "queued")):
        await client.enqueue([start(run_id, input=f'"{"x" * length}"')])
        assert await state(client, run_id) == pushed
    await waiting.wakes()
    claims = [claim.id for _ in range(2) for claim in (await waiting.ada.exchange(slots=1)).claims]
    assert claims == ["short", "long"]


async def test_a_group_goes_one_after_the_other(client: Store, waiting: Waiting) -> None:
    await waiting.park(2)
    await client.enqueue([start("a", group="g"), start("b", group="g")])
    assert [await state(client, run_id) for run_id in "ab"] == ["running", "queued"]


async def test_a_worker_that_drains_gets_none(client: Store, waiting: Waiting) -> None:
    await waiting.park(2)
    await waiting.ada.exchange(slots=0, draining=True)
    await client.enqueue([start("a")])
    assert await state(client, "a") == "queued"


async def test_a_worker_that_stops_listening_gets_none(client: Store, waiting: Waiting, url: str) -> None:
    await waiting.park(2)
    await waiting.subscription.close()
    channel = parse_url(url).prefixes[0] + f":push:{waiting.ada.id}".encode()
    await asyncio.to_thread(until, lambda: redis().run("PUBSUB", "NUMSUB", channel)[1] == 0)
    await client.enqueue([start("a")])
    assert await state(client, "a") == "queued"


async def test_what_was_pushed_to_a_worker_that_retires_is_for_others(client: Store, waiting: Waiting) -> None:
    await waiting.park(2)
    await client.enqueue([start("a")])
    await waiting.store.retire(waiting.ada.id)
    assert await state(client, "a") == "queued"
    record = await client.load("a")
    assert record is not None and record.attempt == 1


async def test_a_namespace_of_newer_code_is_refused(client: Store, url: str) -> None:
    prefix = parse_url(url).prefixes[0]
    redis().run("HSET", prefix + b":n", "format", 2)
    newer = open_store(url)
    with pytest.raises(SchemaTooNew, match="format 2, made by a newer Perdure; this one knows 1"):
        await newer.open()
