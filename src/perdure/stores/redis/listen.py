"""Wake-ups and messages by pub/sub: one connection for each event loop and store, in that loop, for all who listen.

Through a thread, as one connection for the process would need it, a message comes later and costs twice as much (see
the decision record on the driver). A message is a hint. While the server is out of reach none come; once it is back
everybody is woken, since there may be something to be found.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from perdure.errors import StoreError
from perdure.stores.redis.errors import DRIVER_ERRORS, translate
from perdure.stores.redis.route import Route
from perdure.stores.redis.url import Address, Kind, Location
from perdure.stores.redis.wire import Connection, dial, pack

logger = logging.getLogger("perdure.store")

_SHORTEST, _LONGEST = 0.05, 1.0
"""Seconds between attempts to connect, before jitter."""
_BEAT, _PATIENCE = 30.0, 10.0
"""Seconds after which a connection is tried, and for which its answer is waited."""

_ears: dict[tuple[asyncio.AbstractEventLoop, Location], _Ear] = {}


def channel(prefix: bytes, topic: str) -> bytes:
    """The channel of a partition on which its scripts tell of a topic, or what they have to tell one worker."""
    return prefix + b":" + topic.encode()


async def subscribe(
    location: Location,
    topic: str,
    wake: Callable[[], None],
    on_message: Callable[[bytes, int], None] | None = None,
) -> ChannelSubscription:
    """Begins to call `wake` in the running loop for each message, or `on_message` with it and the partition that it is
    of, if given: then `wake` is called only when messages may have been lost. They count when this returns, if the
    server is in reach."""
    key = (asyncio.get_running_loop(), location)
    for ended in [other for other in _ears if other[0].is_closed()]:
        del _ears[ended]
    ear = _ears.get(key)
    if ear is None:
        ear = _ears[key] = _Ear(location)
    subscription = ChannelSubscription(topic, wake, on_message, key)
    ear.subscriptions.add(subscription)
    try:
        await ear.want(topic)
    except BaseException:
        await subscription.close()
        raise
    return subscription


async def hears(location: Location, patience: float = 3.0) -> bool:
    """Whether messages come through, for `perdure doctor`: sends one to a channel of its own, and waits for it so many
    seconds. Raises `StoreError`."""
    name, heard = location.prefixes[0] + f":check-{random.getrandbits(48):x}".encode(), asyncio.Event()
    kind = _kind(location)
    route = Route(location)
    try:
        await route.learn()
        async with AsyncExitStack() as opened:
            listening = await dial(location, route.of(0), pushed=lambda _: heard.set())
            opened.callback(listening.abort)
            await listening.run(f"{kind}SUBSCRIBE", name)
            telling = await dial(location, route.of(0))
            opened.callback(telling.abort)
            await telling.run(f"{kind}PUBLISH", name, "")
            try:
                async with asyncio.timeout(patience):
                    await heard.wait()
            except TimeoutError:
                return False
            return True
    except DRIVER_ERRORS as error:
        raise translate(error, location) from error


class ChannelSubscription:
    """Messages of one topic for one subscriber."""

    def __init__(
        self,
        topic: str,
        wake: Callable[[], None],
        on_message: Callable[[bytes, int], None] | None,
        key: tuple[asyncio.AbstractEventLoop, Location],
    ) -> None:
        self.topic = topic
        self.wake = wake
        self.on_message = on_message
        self._key = key

    async def close(self) -> None:
        ear = _ears.get(self._key)
        if ear is None or self not in ear.subscriptions:
            return
        ear.subscriptions.remove(self)
        if ear.subscriptions:
            ear.unwant(self.topic)
            return
        del _ears[self._key]
        await ear.stop()


class _Line:
    """A connection that listens, for the partitions with these prefixes."""

    def __init__(self, connection: Connection, prefixes: list[bytes], heard: set[bytes]) -> None:
        self.connection = connection
        self.prefixes = prefixes
        self.heard = heard
        """The channels that it listens to."""
        self.telling = asyncio.Lock()


class _Ear:
    """What listens (in a cluster: a connection to each node that has partitions), for all subscriptions of one
    event loop to one store."""

    def __init__(self, location: Location) -> None:
        self.subscriptions: set[ChannelSubscription] = set()
        self._location = location
        self._kind = _kind(location)
        self._channels: dict[bytes, tuple[str, int]] = {}
        """Topic and partition, by channel."""
        self._lines: dict[Address, _Line] = {}
        self._moved = asyncio.Event()
        self._tried = asyncio.Event()
        self._silent = False
        self._listening = asyncio.create_task(self._listen_for_ever())

    async def want(self, topic: str) -> None:
        """Returns when it listens to a topic, or failed to."""
        await self._tried.wait()
        for line in [*self._lines.values()]:
            try:
                await self._hear(line, topic)
            except DRIVER_ERRORS as error:
                line.connection.abort(error)  # And everybody is woken when it is back.

    def unwant(self, topic: str) -> None:
        """Stops to listen to a topic that nobody wants to hear of any more."""
        if any(each.topic == topic for each in self.subscriptions):
            return
        for line in self._lines.values():
            for name in {channel(prefix, topic) for prefix in line.prefixes} & line.heard:
                line.heard.discard(name)
                line.connection.tell(pack(f"{self._kind}UNSUBSCRIBE", name))

    async def stop(self) -> None:
        """Ends the connections."""
        self._listening.cancel()
        await asyncio.wait([self._listening])

    async def _listen_for_ever(self) -> None:
        failures = 0
        try:
            while True:
                try:
                    await self._listen()
                    failures = 0
                except StoreError as error:
                    failures += 1
                    self._say_lost(error)
                except DRIVER_ERRORS as error:
                    failures += 1
                    self._say_lost(translate(error, self._location))
                finally:
                    self._tried.set()
                await asyncio.sleep(min(_LONGEST, _SHORTEST * 2 ** min(failures, 10)) * random.uniform(0.5, 1))
        finally:
            self._keep({})

    async def _listen(self) -> None:
        """Returns when a connection is lost, or a partition has moved. Raises when not all nodes can be listened to;
        those that can be are, also after that."""
        if self._moved.is_set():
            self._moved.clear()
            self._keep({})
        nodes = await self._nodes()
        self._keep(nodes)
        failed: Exception | None = None
        for address, prefixes in nodes.items():
            try:
                await self._reach(address, prefixes)
            except (StoreError, *DRIVER_ERRORS) as error:
                failed = error
                if address in self._lines:
                    self._lines.pop(address).connection.abort(error)
        if failed is not None:
            raise failed
        self._found()
        connections = [line.connection for line in self._lines.values()]
        ends = [asyncio.ensure_future(each.lost.wait()) for each in connections]
        ends.append(asyncio.ensure_future(self._moved.wait()))
        try:
            while not (await asyncio.wait(ends, timeout=_BEAT, return_when=asyncio.FIRST_COMPLETED))[0]:
                for connection in connections:
                    await connection.run("PING")
        finally:
            for end in ends:
                end.cancel()
        self._say_lost("a partition has moved" if self._moved.is_set() else "the server closed the connection")

    async def _reach(self, address: Address, prefixes: list[bytes]) -> None:
        """Listens to a node for all that is wanted; a connection that there is already is tried."""
        line = self._lines.get(address)
        if line is not None:
            await line.connection.run("PING")
            return
        heard: set[bytes] = set()
        pushed = functools.partial(self._pushed, heard)
        connection = await dial(self._location, address, timeout=_PATIENCE, pushed=pushed)
        line = self._lines[address] = _Line(connection, prefixes, heard)
        done: set[str] = set()
        while missing := {each.topic for each in self.subscriptions} - done:
            for topic in missing:
                await self._hear(line, topic)
            done |= missing
        if self._silent:  # What this node told meanwhile was missed, also if others are out of reach still.
            for subscription in [*self.subscriptions]:
                subscription.wake()

    async def _nodes(self) -> dict[Address, list[bytes]]:
        route = Route(self._location)
        await route.learn()
        nodes: dict[Address, list[bytes]] = defaultdict(list)
        for partition, prefix in enumerate(self._location.prefixes):
            nodes[route.of(partition)].append(prefix)
        return nodes

    async def _hear(self, line: _Line, topic: str) -> None:
        async with line.telling:
            for prefix in line.prefixes:
                name = channel(prefix, topic)
                if name not in line.heard:
                    self._channels[name] = topic, self._location.prefixes.index(prefix)
                    await line.connection.run(f"{self._kind}SUBSCRIBE", name)
                    line.heard.add(name)

    def _keep(self, nodes: dict[Address, list[bytes]]) -> None:
        """Ends the connections that are lost, or are to other nodes or for other partitions than these."""
        for address, line in [*self._lines.items()]:
            if not line.connection.is_open or nodes.get(address) != line.prefixes:
                del self._lines[address]
                line.connection.abort()

    def _found(self) -> None:
        if self._silent:
            self._silent = False
            if self._tried.is_set():
                logger.warning("wake-ups from %s are back", self._location.name)
        self._tried.set()

    def _say_lost(self, why: object) -> None:
        if not self._silent:
            self._silent = True
            logger.warning("no wake-ups from %s (%s); trying until they are back", self._location.name, why)

    def _pushed(self, heard: set[bytes], message: Sequence[Any]) -> None:
        """What a server sends: the kind of it, the channel, and the payload or a number."""
        of = self._channels.get(message[1])
        if of is None:
            return
        topic, partition = of
        if message[0] == b"sunsubscribe":
            if message[1] in heard:  # Which nobody asked for: the node does not have the partition any more.
                self._moved.set()
            return
        if message[0] not in (b"message", b"smessage"):
            return
        for subscription in [*self.subscriptions]:
            if subscription.topic != topic:
                continue
            if subscription.on_message is None:
                subscription.wake()
            else:
                subscription.on_message(message[2], partition)


def _kind(location: Location) -> str:
    """In a cluster messages stay with the partition that they are of: sharded pub/sub."""
    return "S" if location.kind is Kind.CLUSTER else ""
