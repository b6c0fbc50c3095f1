"""Which partitions can't be reached just now. Exchanges leave them out, so that the others go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from perdure.errors import StoreError, StoreUnavailable
from perdure.stores.redis.session import Session

logger = logging.getLogger("perdure.store")

_PAUSE = 0.1
"""Seconds between two tries to reach a partition."""
_QUIET = 10.0
"""Seconds for which nothing more is said of one that comes and goes."""


class Reach:
    """What exchanges know of this. A partition that did not answer one of them is tried until it answers."""

    def __init__(self, sessions: Sequence[Session], back: Callable[[int], None]) -> None:
        self._sessions = sessions
        self._back = back
        self._tries: dict[int, asyncio.Task[None]] = {}
        self._said: dict[int, float] = {}

    def out(self) -> frozenset[int]:
        """Those that are out of reach; none where all of them are: then there is nothing that could go on."""
        return frozenset(self._tries) if len(self._tries) < len(self._sessions) else frozenset()

    def lose(self, partition: int, error: StoreUnavailable) -> None:
        """An exchange got no answer from a partition."""
        if len(self._sessions) == 1 or partition in self._tries:
            return
        now = time.monotonic()
        if now - self._said.get(partition, -_QUIET) >= _QUIET:
            self._said[partition] = now
            logger.warning("partition %d does not answer, work of the others goes on (%s)", partition, error)
        self._tries[partition] = asyncio.create_task(self._try(partition))

    async def close(self) -> None:
        """Ends the tries."""
        here = asyncio.get_running_loop()
        tries = [*self._tries.values()]
        for task in tries:
            if not task.get_loop().is_closed():
                task.get_loop().call_soon_threadsafe(task.cancel)
        await asyncio.gather(*(task for task in tries if task.get_loop() is here), return_exceptions=True)

    async def _try(self, partition: int) -> None:
        try:
            while True:
                try:
                    await self._sessions[partition].call("now")
                except StoreUnavailable:
                    await asyncio.sleep(_PAUSE)
                except StoreError:
                    break  # What is wrong the next exchange is told.
                else:
                    break
        finally:
            del self._tries[partition]
        self._back(partition)
