"""The verbs that can be part of a transaction of the application: each one call on its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import convert, json, to_builtins

from perdure.errors import StoreError, StoreUnavailable
from perdure.model import Millis, Signal, Start, Started, State
from perdure.stores.base import Kept
from perdure.stores.exchange import Save
from perdure.stores.postgres.callers import Caller
from perdure.stores.postgres.connect import Way, connect
from perdure.stores.postgres.errors import DRIVER_ERRORS, translate, translate_theirs
from perdure.stores.postgres.session import encode
from perdure.stores.postgres.starts import answers, check
from perdure.stores.postgres.url import Location, quote
from perdure.stores.shared.thread import submit


class Home:
    """Which database the store is in, to notice a connection that leads to another one: asked once, and when one is
    taken for another, since the store itself may have been moved."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._here: str | None = None

    async def known(self, *, blocking: bool) -> str:
        """What the database calls itself. `blocking` blocks the thread instead of suspending."""
        if self._here is None:
            asked = submit(self._ask())
            self._here = asked.result() if blocking else await asyncio.wrap_future(asked)
        return self._here

    async def has_moved(self, here: str, *, blocking: bool) -> bool:
        """Whether the store is in another database than it was: asks again."""
        self._here = None
        return await self.known(blocking=blocking) != here

    async def _ask(self) -> str:
        try:
            connection = await connect(self._location, Way.POOLED_PLAIN)
            try:
                return await connection.fetchval(f"SELECT {quote(self._location.schema)}.here()")
            finally:
                connection.terminate()
        except DRIVER_ERRORS as error:
            raise translate(error, self._location) from error


class WithinTransaction:
    """A connection of the application, as far as the store uses it."""

    def __init__(self, location: Location, home: Home, caller: Caller, clock: Callable[[], Millis | None]) -> None:
        self._location = location
        self._home = home
        self._caller = caller
        self._clock = clock

    @property
    def is_async(self) -> bool:
        return self._caller.is_async

    async def enqueue(self, starts: Sequence[Start]) -> list[Started]:
        if not starts:
            return []
        check(starts)
        said = await self._call("start_within", starts=starts)
        return answers((said["ids"], said["existed"], said["same"], None))

    async def signal(self, signal: Signal) -> None:
        await self._call("signal_within", **to_builtins(signal))

    async def cancel(self, run_id: str, reason: str, *, children: bool = True) -> State:
        return State(await self._call("cancel_within", run_id=run_id, reason=reason, children=children))

    async def keep(self, save: Save) -> Kept:
        said = await self._call("keep_within", ref=save.ref, token=save.token, checkpoint=save.checkpoint)
        return convert(said, Kept)

    async def _call(self, function: str, **said: Any) -> Any:
        blocking = not self._caller.is_async
        here = await self._home.known(blocking=blocking)
        text = encode({"here": here, "clock": self._clock(), **said})
        try:
            return json.decode(await self._caller.call(self._location.schema, function, text))
        except Exception as error:
            # Any driver's. What is the application's own (a deadlock, a connection that broke) it gets as it is.
            ours = translate_theirs(error, self._location, function)
            if ours is None:
                raise
            if type(ours) is StoreError and await self._home.has_moved(here, blocking=blocking):
                raise StoreUnavailable(
                    f"the store {self._location.name} is in another database since it was last asked, one restored or"
                    " renamed perhaps; roll back, and try again"
                ) from error
            raise ours from error
