"""The few connections that each event loop has, and the one way to call the server.

A call may wait in the server, such as a start for the transaction of an application that has the same id. Calls like
that can fill the pool; so a worker's own, by which its runs go on, have connections that no others use.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import asyncpg

from perdure.errors import StoreError
from perdure.stores.postgres.connect import Connection, Way, check_isolation, connect, find_way, is_ended
from perdure.stores.postgres.errors import DRIVER_ERRORS, is_broken, is_transient, translate
from perdure.stores.postgres.url import Location

_RESERVED = 2
"""The most connections of one event loop for calls of workers: an exchange and a chore beside it."""
_TRIES, _PATIENCE = 10, 10.0
"""How often, and for how many seconds, a call that was rolled back is repeated."""
_FRESH = 0.01
"""Seconds for which an idle connection is taken as it is: those of busy programs are not looked at for each call."""
_FAREWELL = 5.0
"""Seconds that closing waits for calls that are under way, and for the server's goodbye."""


class Connections:
    """The connections of a store: up to `pool` of them for each event loop that calls, and two more for its workers.
    They end with their loop, or with `close`."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.calls = 0
        """How many were asked for."""
        self._pools: dict[tuple[asyncio.AbstractEventLoop, bool], _Pool] = {}
        """By event loop, and whether it is the one for workers."""
        self._lock = threading.Lock()
        self._way: Way | None = None
        """What is between us and the server, once one has connected."""
        self._pid = os.getpid()
        self._closed = False

    def open(self) -> None:
        """Lets calls through again after `close`; before it they are let through anyway."""
        self._closed = False

    async def call(self, sql: str, *args: Any, reserved: bool = False) -> list[asyncpg.Record]:
        """Runs one statement, committed when this returns, and gives its rows. `reserved` is for a worker's own, which
        must not wait for those of its steps.

        A call that was certainly rolled back, because of others that are done by now (a deadlock), is repeated for some
        time. Raises `StoreUnavailable` when it may or may not have been done, or may work later (a lock did not come
        within `lock_timeout`), and other kinds of `StoreError`, or of those that our functions raise, when it will not.
        """
        start = time.monotonic()
        tries = 1
        self.calls += 1
        while True:
            pool = await self._pool(reserved)
            try:
                return await pool.call(sql, args)
            except DRIVER_ERRORS as error:
                over = tries >= _TRIES or time.monotonic() - start > _PATIENCE
                if over or not is_transient(error):
                    raise translate(error, self.location) from error
            await asyncio.sleep(random.uniform(0, 0.01 * 2 ** min(tries, 6)))
            tries += 1

    async def close(self) -> None:
        """Closes those of all loops, after the calls that are under way. Calls are refused until `open`: whoever comes
        late would connect anew, and nobody would close that connection."""
        with self._lock:
            self._closed = True
            pools, self._pools = self._pools, {}
        if self._pid != os.getpid():
            return  # What a forked child has a copy of is its parent's.
        here = asyncio.get_running_loop()
        for (loop, _), pool in pools.items():
            if loop is here:
                await pool.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(pool.close(), loop)
                # Its loop may end meanwhile, and it with the loop.
                await asyncio.wait([asyncio.wrap_future(closing)], timeout=2 * _FAREWELL)

    async def _pool(self, reserved: bool) -> _Pool:
        if self._pid != os.getpid():
            raise StoreError("this process was forked from one with an open store: open another one in the child")
        loop = asyncio.get_running_loop()
        pool = self._pools.get((loop, reserved))
        if pool is None:
            with self._lock:
                if self._closed:
                    raise StoreError(f"the store {self.location.name} is closed")
                for ended in [key for key in self._pools if key[0].is_closed()]:
                    del self._pools[ended]
                size = _RESERVED if reserved else self.location.pool
                pool = self._pools.setdefault((loop, reserved), _Pool(self._connect, size))
            await pool.open()
        return pool

    async def _connect(self) -> Connection:
        """Errors are the driver's, and those of `connect`. The first one tells which way the others take."""
        if self._way is None:
            self._way, connection = await find_way(self.location)
        else:
            connection = await connect(self.location, self._way)
        if self._way is not Way.DIRECT:
            await check_isolation(self.location, connection)
        return connection


class _Pool:
    """The connections of one event loop, the last one used first."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._slots = asyncio.Semaphore(size)
        self._idle: list[tuple[float, Connection]] = []
        """And since when."""
        self._closed = False
        self._guard: AsyncGenerator[None] | None = None

    async def open(self) -> None:
        """From now on it is closed with its event loop at the latest."""
        if self._guard is None:
            self._guard = self._until_the_loop_ends()
            await anext(self._guard)

    async def call(self, sql: str, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        """Errors are the driver's."""
        async with self._slots:
            connection = self._latest() or await self._connect()
            try:
                return await connection.fetch(sql, *args)
            except BaseException as error:
                if is_broken(error):
                    connection.terminate()
                    self._drop_idle()  # What broke one has most likely broken them all.
                raise
            finally:
                if self._closed:
                    connection.terminate()
                elif not connection.is_closed():
                    self._idle.append((time.monotonic(), connection))

    async def close(self) -> None:
        if self._guard is not None:
            await self._guard.aclose()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None]:
        """An event loop that ends closes the asynchronous generators that it has seen: that is how this one learns of
        it, in time to say goodbye to the server."""
        try:
            yield
        finally:
            await self._close()

    async def _close(self) -> None:
        taken = 0
        try:
            async with asyncio.timeout(_FAREWELL):
                while taken < self._size:
                    await self._slots.acquire()
                    taken += 1
        except TimeoutError:
            pass  # The calls that are under way end their connections themselves, afterwards.
        self._closed = True
        idle, self._idle = self._idle, []
        for _, connection in idle:
            try:
                await connection.close(timeout=_FAREWELL)
            except DRIVER_ERRORS:
                connection.terminate()
        for _ in range(taken):
            self._slots.release()

    def _latest(self) -> Connection | None:
        while self._idle:
            since, connection = self._idle.pop()
            if connection.is_closed():
                continue
            if time.monotonic() - since < _FRESH or not is_ended(connection):
                return connection
            connection.terminate()
        return None

    def _drop_idle(self) -> None:
        for _, connection in self._idle:
            connection.terminate()
        self._idle.clear()
