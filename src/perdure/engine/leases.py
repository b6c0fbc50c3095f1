"""The thread that keeps a worker's lease."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable

from perdure.clock import Clock
from perdure.errors import PerdureError
from perdure.model import Millis
from perdure.stores.base import Keeper

logger = logging.getLogger("perdure.worker")

_AGAIN = 0.2
"""Seconds until the next try after one that failed: well within the time that others, back before, leave it for it."""

_LONGEST_PAUSE = 3600.0
"""Seconds; threads can't wait for as long as a lease can be."""


class LeaseThread:
    """Renews a lease three times in its length, whatever the event loop is doing; calls `gone`, from its thread, when
    the store does not know the incarnation any more.

    It ends when `alive` says no: an event loop that is closed executes nothing, so its runs are to go on elsewhere.
    `since` is when the lease was asked for, by the clock's steady time.
    """

    def __init__(
        self,
        keeper: Keeper,
        lease: Millis,
        gone: Callable[[], object],
        *,
        clock: Clock,
        since: Millis,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._keeper = keeper
        self._clock = clock
        self._lease = lease
        self._until = since + lease
        self._pause = min(lease / 1000 / 3, _LONGEST_PAUSE)
        self._gone = gone
        self._alive = alive
        self._wake = threading.Event()
        self._stopped = False
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._thread = threading.Thread(target=self._renew, name="perdure-lease", daemon=True)
        self._thread.start()

    @property
    def certain(self) -> bool:
        """Whether the lease has certainly not ended: it lasts longer than since it was asked for. A process that was
        stopped, or a machine that slept, finds out here, before it acts on what it knew before that."""
        return self.left > 0

    @property
    def left(self) -> Millis:
        """For how much longer it is certain."""
        return self._until - self._clock.steady()

    async def hold(self) -> None:
        """Waits until the lease is certain."""
        while not self.certain:
            await self.renewed()

    def renewed(self) -> asyncio.Future[None]:
        """Renews at once. The future, of the running loop, is done when the lease goes on; if it has ended it never
        is: `gone` was called."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((loop, future))
        self._wake.set()
        return future

    def stop(self) -> None:
        """Stops renewing; returns at once."""
        self._stopped = True
        self._wake.set()

    def _renew(self) -> None:
        pause = self._pause
        try:
            while True:
                self._wake.wait(pause)
                self._wake.clear()
                if self._stopped or not self._alive():
                    return
                try:
                    waiting, asked = len(self._waiting), self._clock.steady()
                    if not self._keeper.renew():
                        if not self._stopped:
                            self._gone()
                        return
                    self._until = asked + self._lease
                    pause = self._pause
                    self._tell(waiting)
                except Exception as error:  # whatever it is: without a lease the worker's runs are taken away
                    known = isinstance(error, PerdureError)
                    logger.warning("the lease could not be renewed (%s); trying again", error, exc_info=not known)
                    pause = min(self._pause, _AGAIN)
        finally:
            self._keeper.close()

    def _tell(self, waiting: int) -> None:
        """Tells those who waited when it was asked."""
        for _ in range(waiting):
            loop, future = self._waiting.popleft()
            try:
                loop.call_soon_threadsafe(_done, future)
            except RuntimeError:
                pass  # Its loop is closed, and it with the loop.


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
