"""The connections of a store, and the one way to call its scripts."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import hiredis

from perdure.errors import StoreError, StoreUnavailable
from perdure.stores.redis.durability import Rounds
from perdure.stores.redis.errors import DRIVER_ERRORS, code, is_broken, is_unknown, lacking_rights, translate
from perdure.stores.redis.route import Route
from perdure.stores.redis.scripts import Script, besides, libraries, ready
from perdure.stores.redis.url import Address, Durability, Kind, Location
from perdure.stores.redis.wire import FAREWELL, Argument, Connection, dial, pack, version_of

logger = logging.getLogger("perdure.store")

_PATIENCE = 5.0
"""Seconds for which a call is repeated that a cluster did not take, since it is moving keys."""
_MOST_TURNS = 8
"""How often a call is made anew when the server did not know the script, or does not have the partition any more."""
_WAITAOF_SINCE = (7, 2)
_EVICTS = re.compile(rb"\nmaxmemory_policy:(allkeys-\w+)")
"""Policies under which keys go that have no time to live, such as ours."""

T = TypeVar("T")
Link: TypeAlias = Connection | Rounds


class Redis:
    """A server, or the servers of a cluster, for each event loop that calls: one connection to each, which calls share.
    They end with their loop, or with `close`."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.prefixes = location.prefixes
        """What the keys of each partition begin with."""
        self.calls = 0
        """How many were asked for."""
        self._route = Route(location)
        self._loops: dict[asyncio.AbstractEventLoop, _Links] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    async def open(self) -> None:
        """Connects to the servers of all partitions; lets calls through again after `close`.

        Raises `StoreError` for what can't be the store, such as a server that is too old, and `StoreUnavailable` for
        what can't be reached or can't answer.
        """
        self._closed = False
        seen: set[Address] = set()
        for partition in range(len(self.prefixes)):
            link, address = await self._connected(partition, durable=False)
            if self.location.durability is Durability.FSYNC:
                await self._check_fsync(link, partition)
            await self._make_ready(link, partition)
            if address not in seen:
                seen.add(address)
                await self._warn_of_eviction(link)

    async def call(self, script: Script, *args: Argument, partition: int = 0, durable: bool = False) -> Any:
        """Runs a function (or script) with the prefix of a partition as its one key, and returns its reply: `bytes`,
        `int`, None for false and nil, or a list of them.

        `durable` has it return when what it wrote is as durable as the URL says; where that is more than the server
        does by itself, "durable" as the last argument tells the function to write something in any case. One that the
        server does not know is loaded; where the keys of a partition have moved to is followed.

        Raises `StoreUnavailable` when it may or may not have been done, or may work later, and other kinds of
        `StoreError`, or of those that scripts raise, when it will not.
        """
        self.calls += 1
        durable = durable and self.location.durability is not Durability.DEFAULT
        command = pack(*script.call, 1, self.prefixes[partition], *args, *(("durable",) if durable else ()))
        same: tuple[Link, Address] | None = None
        turns, until = 0, 0.0
        while True:
            link, address = same or self._idle(partition, durable) or await self._connected(partition, durable)
            same = None
            try:
                reply = await link.send(command)
            except DRIVER_ERRORS as error:
                self._route.forget(address)
                raise translate(error, self.location) from error
            if not isinstance(reply, hiredis.ReplyError):
                return reply
            turns += 1
            match "NOSCRIPT" if is_unknown(reply) else code(reply):
                case "NOSCRIPT" if turns < _MOST_TURNS:
                    await self._load(script, link)
                    same = link, address
                case "MOVED" if turns < _MOST_TURNS and self.location.kind is Kind.CLUSTER:
                    self._route.moved(partition, reply, address)
                case "ASK" | "TRYAGAIN" if time.monotonic() < (until := until or time.monotonic() + _PATIENCE):
                    # Half of the keys are here and half are there: neither node could run a script on all of them. The
                    # prefix itself is never a key, so no node tries; when all have moved the answer is MOVED.
                    turns -= 1
                    await asyncio.sleep(random.uniform(0.01, 0.1))
                case _:
                    raise self._failed(reply, link, address)

    async def run(self, *command: Argument, partition: int = 0) -> Any:
        """Runs a command on the server of a partition. Raises as `call` does."""
        self.calls += 1
        link, address = await self._connected(partition, durable=False)
        try:
            reply = await link.send(pack(*command))
        except DRIVER_ERRORS as error:
            self._route.forget(address)
            raise translate(error, self.location) from error
        if isinstance(reply, hiredis.ReplyError):
            raise self._failed(reply, link, address)
        return reply

    async def forget(self, library: bytes, *, partition: int = 0) -> bool:
        """Deletes a function library; returns whether it was there still. Raises as `call` does."""
        self.calls += 1
        link, address = await self._connected(partition, durable=False)
        try:
            reply = await link.send(pack("FUNCTION", "DELETE", library))
        except DRIVER_ERRORS as error:
            self._route.forget(address)
            raise translate(error, self.location) from error
        if isinstance(reply, hiredis.ReplyError) and "Library not found" not in str(reply):
            raise self._failed(reply, link, address)
        return not isinstance(reply, hiredis.ReplyError)

    async def close(self) -> None:
        """Closes those of all loops, after the calls that are under way. Calls are refused until `open`: whoever comes
        late would connect anew, and nobody would close that connection."""
        with self._lock:
            self._closed = True
            loops, self._loops = self._loops, {}
        if self._pid != os.getpid():
            return  # What a forked child has a copy of is its parent's.
        here = asyncio.get_running_loop()
        for loop, links in loops.items():
            if loop is here:
                await links.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(links.close(), loop)
                # Its loop may end meanwhile, and it with the loop.
                await asyncio.wait([asyncio.wrap_future(closing)], timeout=2 * FAREWELL)

    def _idle(self, partition: int, durable: bool) -> tuple[Link, Address] | None:
        """A connection that is open, the usual case."""
        links, address = self._loops.get(asyncio.get_running_loop()), self._route.known.get(partition)
        if links is None or address is None or self._pid != os.getpid():
            return None
        link = links.open.get((address, durable))
        return (link, address) if link is not None and link.is_open else None

    async def _connected(self, partition: int, durable: bool) -> tuple[Link, Address]:
        try:
            return await self._link(partition, durable)
        except DRIVER_ERRORS as error:
            raise translate(error, self.location) from error

    async def _link(self, partition: int, durable: bool) -> tuple[Link, Address]:
        """A connection to the server of a partition, made if need be. Errors are those of `dial`."""
        if self._pid != os.getpid():
            raise StoreError("this process was forked from one with an open store: open another one in the child")
        links = await self._here()
        address = self._route.known.get(partition)
        if address is None:
            await links.once(None, self._route.learn)
            address = self._route.of(partition)
        link = links.open.get((address, durable))
        if link is None or not link.is_open:
            try:
                link = await links.once((address, durable), lambda: self._dial(address, durable))
            except (StoreUnavailable, *DRIVER_ERRORS):
                self._route.forget(address)
                raise
            if links.closed:
                link.abort()
                raise StoreError(f"the store {self.location.name} is closed")
            links.open[address, durable] = link
        return link, address

    async def _dial(self, address: Address, durable: bool) -> Link:
        location = self.location
        if not durable:
            return await dial(location, address)
        connection = await dial(location, address, timeout=(location.call_timeout + location.wait_timeout) / 1000)
        return Rounds(connection, location)

    async def _here(self) -> _Links:
        loop = asyncio.get_running_loop()
        links = self._loops.get(loop)
        if links is None:
            with self._lock:
                if self._closed:
                    raise StoreError(f"the store {self.location.name} is closed")
                for ended in [other for other in self._loops if other.is_closed()]:
                    del self._loops[ended]
                links = self._loops.setdefault(loop, _Links())
            await links.begin()
        return links

    async def _make_ready(self, link: Link, partition: int) -> None:
        """Has a server know all functions: one that is full takes none that it does not know yet, and those that make
        room would be among them. HELLO is answered also by a server that loads its data, or lets this user run none."""
        try:
            reply = await link.send(pack(*ready().call, 1, self.prefixes[partition]))
        except DRIVER_ERRORS as error:
            raise translate(error, self.location) from error
        if isinstance(reply, hiredis.ReplyError) and is_unknown(reply):
            for each in libraries().values():  # Others get their turns in between.
                await self._load(each, link)
        lacks = await self.call(ready(), *besides(self.location), partition=partition)
        if lacks:
            raise lacking_rights(sorted({name.decode() for name in lacks}), self.location)

    async def _load(self, script: Script, link: Link) -> None:
        """Has the server know a script; one loaded in this way it does not forget by itself."""
        try:
            reply = await link.keep(*script.load, script.source)
        except DRIVER_ERRORS as error:
            raise translate(error, self.location) from error
        if isinstance(reply, hiredis.ReplyError) and "already exists" not in str(reply):  # Somebody else was quicker.
            raise translate(reply, self.location)

    async def _warn_of_eviction(self, link: Link) -> None:
        """Says so of a server that throws away keys, if this user may look: who learns it from what is missing looks
        for the cause elsewhere."""
        try:
            reply = await link.send(pack("INFO", "memory"))
        except DRIVER_ERRORS as error:
            raise translate(error, self.location) from error
        if isinstance(reply, hiredis.ReplyError):
            return
        evicts = _EVICTS.search(reply)
        if evicts is not None and b"\nmaxmemory:0\r" not in reply:
            logger.warning(
                "the store %s is on a server with maxmemory-policy %s: when its memory is full it throws away keys, and"
                " with them runs; set noeviction, and keep caches on another server",
                self.location.name,
                evicts[1].decode(),
            )

    def _failed(self, error: hiredis.ReplyError, link: Link, address: Address) -> Exception:
        if is_broken(error):
            link.abort()
            self._route.forget(address)
        return translate(error, self.location)

    async def _check_fsync(self, link: Link, partition: int) -> None:
        """Refuses a server that can't wait for its disk."""
        if version_of(link.hello) < _WAITAOF_SINCE:
            raise StoreError(
                f"the store {self.location.name} is on Redis {link.hello[b'version'].decode()}, which can't wait for"
                " its disk: durability=fsync needs Redis 7.2 or Valkey 8.0, or newer"
            )
        await self.run("WAITAOF", 1, 0, 1, partition=partition)


class _Links:
    """The connections of one event loop."""

    def __init__(self) -> None:
        self.open: dict[tuple[Address, bool], Link] = {}
        """By address, and whether they wait for durability."""
        self.closed = False
        self._doing: dict[object, asyncio.Task[Any]] = {}
        self._guard: AsyncGenerator[None] | None = None

    async def begin(self) -> None:
        """From now on they are closed with the event loop at the latest."""
        if self._guard is None:
            self._guard = self._until_the_loop_ends()
            await anext(self._guard)

    async def once(self, what: object, do: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Does something for all who want it at the same time."""
        task = self._doing.get(what)
        if task is None:
            task = self._doing[what] = asyncio.create_task(do())
            task.add_done_callback(lambda done: self._did(what, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        if self._guard is not None:
            await self._guard.aclose()

    def _did(self, what: object, task: asyncio.Task[Any]) -> None:
        del self._doing[what]
        if not task.cancelled():
            task.exception()  # Those who wanted it may all be gone.

    async def _until_the_loop_ends(self) -> AsyncGenerator[None]:
        """An event loop that ends closes the asynchronous generators that it has seen: that is how this one learns of
        it, in time for the calls that are under way."""
        try:
            yield
        finally:
            self.closed = True
            for task in self._doing.values():
                task.cancel()
            for link in self.open.values():
                await link.close()
