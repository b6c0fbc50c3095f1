"""Keeping the lease of an incarnation: one small call on a connection of its own, whatever else the store does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.model import Millis
from perdure.stores.postgres.connect import Connection, Way, connect
from perdure.stores.postgres.errors import DRIVER_ERRORS, is_broken, translate
from perdure.stores.postgres.sql import load
from perdure.stores.postgres.url import Location
from perdure.stores.shared.thread import submit

_SHORTEST, _LONGEST = 1.0, 10.0
"""Seconds that a renewal may take, connecting included: a quarter of the lease, within these bounds."""


class LeaseKeeper:
    """Renews on a connection that it opens at the first renewal, and again when that is lost."""

    def __init__(
        self, location: Location, worker: int, lease: Millis, now: Callable[[], Millis | None] = lambda: None
    ) -> None:
        self._location = location
        self._worker = worker
        self._lease = lease
        self._now = now
        self._patience = min(max(_SHORTEST, lease / 4000), _LONGEST)
        self._statement = load("keeper", location.schema)["renew"]
        self._connection: Connection | None = None

    def renew(self) -> bool:
        return submit(self._renew()).result()

    def close(self) -> None:
        submit(self._close()).result()

    async def _close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _renew(self) -> bool:
        try:
            async with asyncio.timeout(self._patience):
                if self._connection is not None:
                    try:
                        return await self._ask(self._connection)
                    except DRIVER_ERRORS as error:
                        if not is_broken(error):
                            raise
                        await self._close()  # Between two renewals servers and firewalls end what is idle.
                # Nothing is gained by preparing a call that comes every few seconds; this way suits any pooler.
                self._connection = await connect(self._location, Way.POOLED_PLAIN)
                return await self._ask(self._connection)
        except BaseException as error:
            await self._close()
            if isinstance(error, DRIVER_ERRORS):
                raise translate(error, self._location) from error
            raise

    async def _ask(self, connection: Connection) -> bool:
        return bool(await connection.fetchval(self._statement, self._now(), self._worker, self._lease))
