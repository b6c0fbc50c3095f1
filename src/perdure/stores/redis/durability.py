"""Calls that return when replicas, or the disk, have what they wrote."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias, cast

import hiredis

from perdure.errors import StoreUnavailable
from perdure.stores.redis.url import Durability, Location
from perdure.stores.redis.wire import Connection, pack

_Call: TypeAlias = tuple[bytes, asyncio.Future[Any]]


class Rounds:
    """Sends calls in rounds: those that come while one is waited for go together in the next, with one wait for all of
    them. The connection is theirs alone, since a wait holds up all that comes behind it."""

    def __init__(self, connection: Connection, location: Location) -> None:
        """A server waits for what a connection wrote last. A call that finds that another connection has done what it
        asks for has to wait all the same: so each call is to write something (see `Redis.call`)."""
        self._connection = connection
        self._location = location
        if location.durability is Durability.FSYNC:
            self._wait = pack("WAITAOF", 1, location.replicas, location.wait_timeout)
        else:
            self._wait = pack("WAIT", location.replicas, location.wait_timeout)
        self._next: list[_Call] = []
        self._going: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    @property
    def hello(self) -> dict[bytes, Any]:
        return self._connection.hello

    def send(self, command: bytes) -> asyncio.Future[Any]:
        """As `Connection.send`. The future fails with `StoreUnavailable` when too few have what was written in time:
        it is done, but may be lost yet, and is to be repeated."""
        future = asyncio.get_running_loop().create_future()
        self._next.append((command, future))
        if self._going is None:
            self._going = asyncio.create_task(self._go())
        return future

    def keep(self, *command: str) -> asyncio.Future[Any]:
        """As `Connection.keep`."""
        return self._connection.keep(*command)

    def abort(self) -> None:
        """As `Connection.abort`."""
        self._connection.abort()

    async def close(self) -> None:
        """Ends the connection after the calls that are under way, within some seconds."""
        if self._going is not None:
            await asyncio.wait([self._going], timeout=self._location.wait_timeout / 1000)
        await self._connection.close()

    async def _go(self) -> None:
        while self._next:
            calls, self._next = self._next, []
            try:
                await self._round(calls)
            except Exception as error:  # whatever it is, those who wait are to hear of it
                for _, future in calls:
                    if not future.done():
                        future.set_exception(error)
        self._going = None

    async def _round(self, calls: list[_Call]) -> None:
        commands = (*(command for command, _ in calls), self._wait)
        *replies, confirmed = await asyncio.gather(*map(self._connection.send, commands))
        short: Exception | None
        if isinstance(confirmed, hiredis.ReplyError):
            self.abort()  # It became a replica, as a rule: the next one leads to what takes writes.
            short = confirmed
        else:
            short = self._short(confirmed)
        for (_, future), reply in zip(calls, replies, strict=True):
            if future.done():
                continue
            # What was refused wrote nothing that could be waited for, and says itself what is to be done about it.
            if short is None or isinstance(reply, hiredis.ReplyError):
                future.set_result(reply)
            else:
                future.set_exception(short)

    def _short(self, confirmed: Any) -> StoreUnavailable | None:
        """What to say when fewer confirmed than asked for: WAIT tells how many replicas, WAITAOF also whether here."""
        location = self._location
        here, there = cast("list[int]", confirmed) if isinstance(confirmed, list) else (1, int(confirmed))
        within = f"within {location.wait_timeout} ms (wait_timeout)"
        if here < 1:
            return StoreUnavailable(f"the store {location.name} did not have a write on its disk {within}")
        if there < location.replicas:
            on_disk = location.durability is Durability.FSYNC
            return StoreUnavailable(
                f"the store {location.name} had a write on {'the disks of ' if on_disk else ''}{there} of the"
                f" {location.replicas} replicas that the URL asks for {within}"
                f"{': they need an append-only file as well; `perdure doctor` looks at them' if on_disk else ''}"
            )
        return None
