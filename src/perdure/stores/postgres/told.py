"""Subscriptions. Those who want to be told of ends or of progress say so in the store: without them nobody notifies."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from perdure.errors import StoreError
from perdure.stores.base import Subscription, Topic
from perdure.stores.postgres.session import Session

logger = logging.getLogger("perdure.store")

_KEPT = 90_000
"""Milliseconds for which a word holds; it is renewed three times in between, so that one of a dead process ends."""


_SOON = 0.01
"""Seconds after which a worker looks again that was busy until now, or not there: longer than a start takes that saw
that."""


class WorkSubscription:
    """A worker's. Starts do not call workers that are busy, or do not serve them."""

    def __init__(self, inner: Subscription, wake: Callable[[], None], among: set[WorkSubscription]) -> None:
        self._inner = inner
        self._wake = wake
        self._among = among
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        among.add(self)

    def wake_soon(self) -> None:
        """Wakes the worker a little later, once. Only the loop of the subscriber does anything."""
        if self._timer is None and asyncio.get_running_loop() is self._loop:
            self._timer = self._loop.call_later(_SOON, self._ring)

    async def close(self) -> None:
        self._among.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        await self._inner.close()

    def _ring(self) -> None:
        self._timer = None
        self._wake()


class ToldSubscription:
    """A subscription, and the row that says that somebody has it."""

    def __init__(self, db: Session, topic: Topic, inner: Subscription) -> None:
        self._db = db
        self._topic = topic
        self._inner = inner
        self._id = secrets.token_hex(8)
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def begin(cls, db: Session, topic: Topic, inner: Subscription) -> ToldSubscription:
        """Says that somebody has it. When that fails it is closed."""
        told = cls(db, topic, inner)
        try:
            await told._say()
        except BaseException:
            await inner.close()
            raise
        told._renewing = asyncio.create_task(told._renew())
        return told

    async def close(self) -> None:
        await self._inner.close()
        if self._renewing is None:
            return
        self._renewing.cancel()
        self._renewing = None
        try:
            await self._db.read("unlisten", self._id, self._topic)
        except StoreError as error:
            logger.debug("a word that nobody listens any more was lost: %s", error)

    async def _say(self) -> None:
        await self._db.read("listen", self._id, self._topic, _KEPT)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_KEPT / 3000)
            try:
                await self._say()
            except StoreError as error:
                # Until it is back, those who wait look by themselves.
                logger.debug("could not say that somebody listens: %s", error)
