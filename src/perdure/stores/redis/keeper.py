"""Keeping the lease of an incarnation: one small call on a connection of its own, whatever else the store does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from perdure.model import Millis
from perdure.stores.redis.connect import Redis
from perdure.stores.redis.errors import translate
from perdure.stores.redis.scripts import Script
from perdure.stores.redis.url import Location
from perdure.stores.redis.wire import Argument
from perdure.stores.shared.thread import submit

_SHORTEST, _LONGEST = 1.0, 10.0
"""Seconds that a renewal may take, connecting included: a quarter of the lease, within these bounds."""


class LeaseKeeper:
    """Renews on a connection that it opens at the first renewal and again after an error.

    `script` is called with `arguments()`, on each of the partitions, and returns 1, or 0 when the incarnation is gone.
    What the first partition says of that holds for all: the others are renewed as far as they are in reach.
    """

    def __init__(
        self, location: Location, lease: Millis, script: Script, arguments: Callable[[], Sequence[Argument]]
    ) -> None:
        self._patience = min(max(_SHORTEST, lease / 4000), _LONGEST)
        self._location = replace(
            location, call_timeout=int(self._patience * 1000), connect_timeout=max(1, int(self._patience))
        )
        self._redis = Redis(self._location)
        self._script = script
        self._arguments = arguments

    def renew(self) -> bool:
        return submit(self._renew()).result()

    def close(self) -> None:
        submit(self._redis.close()).result()

    async def _renew(self) -> bool:
        arguments = self._arguments()
        others = [
            asyncio.ensure_future(self._redis.call(self._script, *arguments, partition=partition))
            for partition in range(1, len(self._redis.prefixes))
        ]
        try:
            async with asyncio.timeout(self._patience):
                reply = await self._redis.call(self._script, *arguments)
                if others:
                    await asyncio.wait(others, timeout=self._patience / 2)
        except TimeoutError as error:
            raise translate(error, self._location) from error
        finally:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        return bool(reply)
