"""Messages by pub/sub, to those who want them, and after the connection was cut."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure.errors import StoreError
from perdure.stores.base import Topic
from perdure.stores.redis import listen
from perdure.stores.redis.listen import ChannelSubscription, channel, hears, subscribe
from perdure.stores.redis.route import slot
from perdure.stores.redis.url import Location, parse_url
from perdure.stores.redis.wire import Connection
from servers import redis as servers
from servers.redis import Cluster, RedisServer, own_server

PATIENCE = 30

pytestmark = pytest.mark.anyio


@pytest.fixture
def own() -> Iterator[RedisServer]:
    with own_server() as server:
        yield server


@pytest.fixture
def location(own: RedisServer) -> Location:
    return parse_url(own.url)


class Ear:
    """A subscriber."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.messages: list[bytes] = []
        self.partitions: list[int] = []
        self.told = asyncio.Event()

    def hear(self, payload: bytes, partition: int) -> None:
        self.messages.append(payload)
        self.partitions.append(partition)
        self.told.set()

    async def wakes(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.woken.wait()
        self.woken.clear()

    async def gets(self, count: int) -> list[bytes]:
        async with asyncio.timeout(PATIENCE):
            while len(self.messages) < count:
                self.told.clear()
                await self.told.wait()
        got, self.messages = self.messages, []
        return got


@pytest.fixture
async def ear(location: Location) -> AsyncIterator[Ear]:
    ear = Ear()
    subscription = await subscribe(location, Topic.WORK, ear.woken.set)
    yield ear
    await subscription.close()


def publish(server: RedisServer, topic: Topic, payload: bytes = b"") -> int:
    return server.run("PUBLISH", channel(b"{perdure}", topic), payload)


def cut(server: RedisServer) -> None:
    server.run("CLIENT", "KILL", "TYPE", "pubsub")


async def test_a_message_wakes_those_of_its_topic(own: RedisServer, ear: Ear) -> None:
    assert publish(own, Topic.ENDED) == 0
    assert publish(own, Topic.WORK) == 1
    await ear.wakes()


async def test_messages_come_with_what_they_carry(own: RedisServer, location: Location, ear: Ear) -> None:
    ended = Ear()
    subscription = await subscribe(location, Topic.ENDED, ended.woken.set, ended.hear)
    payloads = [bytes(range(256)), b"", b"x" * 100_000]
    for payload in payloads:
        publish(own, Topic.ENDED, payload)
    assert await ended.gets(3) == payloads
    assert not ended.woken.is_set()
    assert not ear.woken.is_set()
    await subscription.close()


async def test_all_share_one_connection_and_hear_only_what_they_want(own: RedisServer, location: Location) -> None:
    subscriptions = [await subscribe(location, topic, lambda: None) for topic in (*Topic, *Topic)]
    assert own.run("CLIENT", "LIST", "TYPE", "pubsub").count(b"\n") == 1
    assert all(publish(own, topic) == 1 for topic in Topic)
    for subscription in subscriptions[:-1]:
        await subscription.close()
        await subscription.close()
    async with asyncio.timeout(PATIENCE):
        while publish(own, Topic.WORK) or publish(own, Topic.ENDED):
            await asyncio.sleep(0.001)
    assert publish(own, Topic.STATUS) == 1
    await subscriptions[-1].close()
    async with asyncio.timeout(PATIENCE):
        while own.run("CLIENT", "LIST", "TYPE", "pubsub"):
            await asyncio.sleep(0.001)


async def test_a_cut_connection_comes_back_and_wakes_everybody(
    own: RedisServer, location: Location, ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    ended = Ear()
    subscription = await subscribe(location, Topic.ENDED, ended.woken.set, ended.hear)
    for _ in range(3):
        cut(own)
        await ear.wakes()
        await ended.wakes()
        publish(own, Topic.ENDED, b"again")
        assert await ended.gets(1) == [b"again"]
    assert "no wake-ups from" in caplog.text and "are back" in caplog.text
    await subscription.close()


async def test_a_server_that_is_away_for_a_while(
    own: RedisServer, ear: Ear, location: Location, caplog: pytest.LogCaptureFixture
) -> None:
    own.kill9()
    async with asyncio.timeout(PATIENCE):
        while "no wake-ups" not in caplog.text:
            await asyncio.sleep(0.001)
    late = Ear()
    subscription = await subscribe(location, Topic.STATUS, late.woken.set)  # Returns though it can't be reached.
    own.start()
    await ear.wakes()
    await late.wakes()
    assert publish(own, Topic.STATUS) == 1
    await late.wakes()
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 2
    await subscription.close()


async def test_a_server_that_is_not_there_at_first(location: Location, own: RedisServer) -> None:
    own.kill9()
    ear = Ear()
    subscription = await subscribe(location, Topic.WORK, ear.woken.set)
    own.start()
    await ear.wakes()
    await subscription.close()


async def test_a_connection_on_which_nothing_comes_is_tried(
    own: RedisServer, location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "_BEAT", 0.01)
    monkeypatch.setattr(listen, "_PATIENCE", 0.2)
    ear = Ear()
    subscription = await subscribe(location, Topic.WORK, ear.woken.set)
    own.freeze()
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        while not listen._ears[asyncio.get_running_loop(), location]._silent:
            await asyncio.sleep(0.001)
    own.freeze(frozen=False)
    await ear.wakes()
    await subscription.close()


async def test_each_loop_listens_by_itself(own: RedisServer, ear: Ear, location: Location) -> None:
    async def elsewhere() -> None:
        other = Ear()
        subscription = await subscribe(location, Topic.WORK, other.woken.set)
        assert await asyncio.to_thread(publish, own, Topic.WORK) == 2
        await other.wakes()
        await subscription.close()

    await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    await ear.wakes()


async def test_a_loop_that_ends_takes_its_connection_along(own: RedisServer, location: Location) -> None:
    async def elsewhere() -> ChannelSubscription:
        return await subscribe(location, Topic.WORK, lambda: None)

    await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    async with asyncio.timeout(PATIENCE):
        while own.run("CLIENT", "LIST", "TYPE", "pubsub"):
            await asyncio.sleep(0.001)
    subscription = await subscribe(location, Topic.WORK, lambda: None)
    assert not any(loop.is_closed() for loop, _ in listen._ears)
    await subscription.close()


async def test_a_subscriber_that_gives_up(own: RedisServer, location: Location) -> None:
    own.freeze()
    task = asyncio.create_task(subscribe(location, Topic.WORK, lambda: None))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (asyncio.get_running_loop(), location) not in listen._ears
    own.freeze(frozen=False)


async def test_a_user_that_may_not_listen(own: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    own.run("ACL", "SETUSER", "ann", "on", ">pw", "+@all", "~*", "resetchannels")
    location = parse_url(servers.with_login(own.url, "ann", "pw"))
    subscription = await subscribe(location, Topic.WORK, lambda: None)
    assert "it lacks channels; ACL SETUSER ann '&{perdure}*'" in caplog.text
    with pytest.raises(StoreError, match=r"it lacks channels; ACL SETUSER ann '&\{perdure\}\*'"):
        await hears(location)
    await subscription.close()


async def test_databases_of_one_server_do_not_hear_each_other(own: RedisServer) -> None:
    """Its channels are those of the server: a run of the same id would seem to have ended in all of them."""
    ear, other = Ear(), Ear()
    listening = [
        await subscribe(parse_url(f"{own.url}/{db}"), Topic.ENDED, each.woken.set, each.hear)
        for db, each in enumerate((ear, other))
    ]
    for db in (0, 1):
        location = parse_url(f"{own.url}/{db}")
        assert own.run("PUBLISH", channel(location.prefixes[0], Topic.ENDED), str(db)) == 1
    assert (await ear.gets(1), await other.gets(1)) == ([b"0"], [b"1"])
    for subscription in listening:
        await subscription.close()


async def test_whether_messages_come_through(location: Location) -> None:
    assert await hears(location)


# --- a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with servers.cluster() as made:
        yield made


async def test_messages_of_all_partitions_of_a_cluster(cluster: Cluster) -> None:
    location = parse_url(f"{cluster.url}?partitions=6")
    assert await hears(location)
    ear = Ear()
    subscription = await subscribe(location, Topic.ENDED, ear.woken.set, ear.hear)
    for number, prefix in enumerate(location.prefixes):
        node = cluster.owner(prefix)
        assert await asyncio.to_thread(node.run, "SPUBLISH", channel(prefix, Topic.ENDED), str(number)) == 1
    assert sorted(await ear.gets(6)) == [str(number).encode() for number in range(6)]
    prefix = location.prefixes[0]
    source = cluster.owner(prefix)
    target = next(each for each in cluster.primaries if each is not source)
    await asyncio.to_thread(cluster.begin_move, slot(prefix), source, target)
    await asyncio.to_thread(cluster.end_move, slot(prefix), source, target)
    await ear.wakes()
    assert target.run("SPUBLISH", channel(prefix, Topic.ENDED), "moved") == 1
    assert await ear.gets(1) == [b"moved"]
    await subscription.close()


async def test_a_subscription_that_is_made_while_nodes_are_dialled_hears_all_of_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = parse_url(f"{cluster.url}?partitions=6&namespace=during")
    first = Ear()
    subscriptions = [await subscribe(location, Topic.WORK, first.woken.set)]
    dialled, go_on = asyncio.Event(), asyncio.Event()
    count, dial = 0, listen.dial

    async def slow(*args: Any, **options: Any) -> Connection:
        nonlocal count
        count += 1
        if count == 2:
            dialled.set()
            await go_on.wait()
        return await dial(*args, **options)

    monkeypatch.setattr(listen, "dial", slow)
    for node in cluster.primaries:
        await asyncio.to_thread(cut, node)
    listen._ears[asyncio.get_running_loop(), location]._moved.set()
    async with asyncio.timeout(PATIENCE):
        await dialled.wait()
        subscriptions.append(await subscribe(location, Topic.STATUS, lambda: None))
        go_on.set()
        while listen._ears[asyncio.get_running_loop(), location]._silent:
            await asyncio.sleep(0.001)
    for prefix in location.prefixes:
        assert cluster.owner(prefix).run("SPUBLISH", channel(prefix, Topic.STATUS), "") == 1
    for subscription in subscriptions:
        await subscription.close()


async def test_while_a_node_is_down_the_others_are_heard(caplog: pytest.LogCaptureFixture) -> None:
    with servers.cluster(settings={"cluster-require-full-coverage": "no"}) as cluster:
        location = parse_url(f"{cluster.url}?partitions=6")
        ear = Ear()
        subscription = await subscribe(location, Topic.ENDED, ear.woken.set, ear.hear)
        owners = {prefix: cluster.owner(prefix) for prefix in location.prefixes}
        gone = owners[location.prefixes[0]]
        gone.kill9()
        async with asyncio.timeout(PATIENCE):
            while "no wake-ups" not in caplog.text:
                await asyncio.sleep(0.001)
        late = Ear()
        subscriptions = [subscription, await subscribe(location, Topic.STATUS, late.woken.set)]
        for prefix, node in owners.items():
            if node is not gone:
                assert node.run("SPUBLISH", channel(prefix, Topic.ENDED), "healthy") == 1
                assert node.run("SPUBLISH", channel(prefix, Topic.STATUS), "") == 1
                assert await ear.gets(1) == [b"healthy"]
        assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1
        await asyncio.to_thread(gone.start)
        await late.wakes()
        for each in subscriptions:
            await each.close()
