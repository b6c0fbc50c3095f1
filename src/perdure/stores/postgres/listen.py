"""Wake-ups by LISTEN: one connection for each process and store, in the background thread, for all event loops.

A notification is a hint. While the server is out of reach none come; once it is back everybody is woken, since there
may be something to be found.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import TypeAlias

from perdure.errors import StoreError
from perdure.stores.base import Topic
from perdure.stores.postgres.connect import Connection, Way, connect
from perdure.stores.postgres.errors import DRIVER_ERRORS, translate
from perdure.stores.postgres.past import connect_past
from perdure.stores.postgres.url import Location, quote
from perdure.stores.shared.thread import submit

logger = logging.getLogger("perdure.store")

_SHORTEST, _LONGEST = 0.05, 1.0
"""Seconds between attempts to connect, before jitter."""
_BEAT, _PATIENCE = 30.0, 10.0
"""Seconds after which a connection on which nothing comes is tried, and for which its answer is waited."""
_TOPICS = {topic.value[0]: topic for topic in Topic}
"""By the first letter of the payload."""
_MOST = 1000
"""Notifications that wait for one subscriber, whose loop may be busy; what comes then becomes one that says nothing."""

_lock = threading.Lock()
_Key: TypeAlias = tuple[str, str | None, str, int]
"""The URLs of a store, its schema, and the process."""

_listeners: dict[_Key, _Listener] = {}


def channel(schema: str) -> str:
    """The channel that a schema's functions notify: in SQL, `'perdure_' || left(md5(current_schema()), 16)`."""
    return "perdure_" + hashlib.md5(schema.encode(), usedforsecurity=False).hexdigest()[:16]


async def subscribe(
    location: Location, topic: Topic, wake: Callable[[], None], receive: Callable[[str], None] | None = None
) -> ChannelSubscription:
    """Begins to call `wake` in the running loop, or `receive` for each notification with what it says, if given.

    That is empty when there is nothing but that something happened, or that notifications may have been lost. These
    count when this returns, if the server is in reach.
    """
    key = (location.url, location.listen, location.schema, os.getpid())
    with _lock:
        listener = _listeners.get(key)
        if listener is None:
            listener = _listeners[key] = _Listener(location)
        subscription = ChannelSubscription(asyncio.get_running_loop(), topic, wake, key, receive)
        listener.subscriptions.add(subscription)
    try:
        await asyncio.shield(asyncio.wrap_future(listener.tried))
    except BaseException:
        await subscription.close()
        raise
    return subscription


async def hears(location: Location, patience: float = 3.0) -> bool:
    """Whether notifications come through, for `perdure doctor`: sends one to a channel of its own, and waits for it so
    many seconds. Raises `StoreError`."""
    name, heard = f"perdure_check_{random.getrandbits(48):x}", asyncio.Event()

    def listener(*_: object) -> None:
        heard.set()

    try:
        async with AsyncExitStack() as opened:
            way, listening = await connect_past(location)
            opened.callback(listening.terminate)
            if way is not Way.DIRECT:
                return False
            await listening.add_listener(name, listener)
            telling = await connect(location, Way.POOLED_PLAIN)
            opened.callback(telling.terminate)
            await telling.fetch("SELECT pg_notify($1, '')", name)
            try:
                async with asyncio.timeout(patience):
                    await heard.wait()
            except TimeoutError:
                return False
            return True
    except DRIVER_ERRORS as error:
        raise translate(error, location) from error


class ChannelSubscription:
    """Wake-ups of one topic for one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        topic: Topic,
        wake: Callable[[], None],
        key: _Key,
        receive: Callable[[str], None] | None = None,
    ) -> None:
        self.topic = topic
        self._loop = loop
        self._wake = wake
        self._receive = receive
        self._key = key
        self._woken = False
        self._said: deque[str] = deque()

    def wake(self, said: str = "") -> None:
        """Calls the subscriber in its loop, once for all that comes until it is called. For the listener's thread."""
        if self._receive is not None:
            if len(self._said) < _MOST:
                self._said.append(said)
            elif len(self._said) == _MOST:
                self._said.append("")
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._call)
        except RuntimeError:
            pass  # Its loop is closed, and it with the loop.

    async def close(self) -> None:
        with _lock:
            listener = _listeners.get(self._key)
            if listener is None or self not in listener.subscriptions:
                return
            listener.subscriptions.remove(self)
            if listener.subscriptions:
                return
            del _listeners[self._key]
        listener.stop()

    def _call(self) -> None:
        self._woken = False
        if self._receive is None:
            self._wake()
            return
        while self._said:
            self._receive(self._said.popleft())


class _Listener:
    """The connection that listens, for all subscriptions of a process to one schema."""

    def __init__(self, location: Location) -> None:
        self.subscriptions: set[ChannelSubscription] = set()
        self.tried: Future[None] = Future()
        """Done when it listens, or failed to for the first time."""
        self._location = location
        self._silent = False
        self._listening = submit(self._listen_for_ever())

    def stop(self) -> None:
        """Ends the connection, soon."""
        self._listening.cancel()

    async def _listen_for_ever(self) -> None:
        failures = 0
        while True:
            try:
                way, connection = await connect_past(self._location, statement_timeout=int(_PATIENCE * 1000))
                if way is not Way.DIRECT:
                    connection.terminate()
                    logger.warning(
                        "no wake-ups from %s: it is behind a pooler, so give its own URL as ?listen=…; "
                        "until then workers look for work by themselves",
                        self._location.name,
                    )
                    return
                await self._listen(connection)
                failures = 0
            except (StoreError, *DRIVER_ERRORS) as error:
                failures += 1
                self._say_lost(error)
            finally:
                if not self.tried.done():
                    self.tried.set_result(None)
            await asyncio.sleep(min(_LONGEST, _SHORTEST * 2 ** min(failures, 10)) * random.uniform(0.5, 1))

    async def _listen(self, connection: Connection) -> None:
        """Returns when the connection is lost."""
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            if (confidential := await _confidential(connection, self._location.schema)) is not None:
                await connection.add_listener(confidential, self._told)
            await connection.add_listener(channel(self._location.schema), self._notified)
            self._found()
            while not lost.is_set():
                try:
                    await asyncio.wait_for(lost.wait(), _BEAT)
                except TimeoutError:
                    await connection.fetchval("SELECT 1", timeout=_PATIENCE)
        finally:
            connection.terminate()
        self._say_lost("the server closed the connection")

    def _found(self) -> None:
        if not self.tried.done():
            self.tried.set_result(None)
        elif self._silent:
            logger.warning("wake-ups from %s are back", self._location.name)
        if self._silent:
            self._silent = False
            self._wake(None)

    def _say_lost(self, why: object) -> None:
        if not self._silent:
            self._silent = True
            logger.warning("no wake-ups from %s (%s); trying again until they are back", self._location.name, why)

    def _notified(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        """What comes on a channel to which anybody may say something: nothing but hints."""
        topic = _TOPICS.get(str(payload)[:1])
        if topic is not None:
            self._wake(topic)

    def _told(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        """What comes on the channel that only those know who may read the schema."""
        self._wake(Topic.ENDED, str(payload))

    def _wake(self, topic: Topic | None, said: str = "") -> None:
        """Wakes those who want to be told of a topic, or all."""
        with _lock:
            wanted = [each for each in self.subscriptions if topic in (None, each.topic)]
        for subscription in wanted:
            subscription.wake(said)


async def _confidential(connection: Connection, schema: str) -> str | None:
    """The channel on which ends are told with their results; None where the schema is not there yet."""
    table = f"{quote(schema)}.confidential"
    if await connection.fetchval("SELECT to_regclass($1)", table) is None:
        return None
    return await connection.fetchval(f"SELECT channel FROM {table}")
