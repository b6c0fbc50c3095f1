"""The thread that keeps a worker's lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from perdure.errors import PerdureError
from perdure.model import Millis
from perdure.stores.base import Keeper

logger = logging.getLogger("perdure.worker")

_LONGEST_PAUSE = 3600.0
"""Seconds; threads can't wait for as long as a lease can be."""


class LeaseThread:
    """Renews a lease three times in its length, whatever the event loop is doing; calls `gone`, from its thread, when
    the store does not know the incarnation any more.

    It ends when `alive` says no: an event loop that is closed executes nothing, so its runs are to go on elsewhere.
    """

    def __init__(
        self,
        keeper: Keeper,
        lease: Millis,
        gone: Callable[[], object],
        *,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._keeper = keeper
        self._pause = min(lease / 1000 / 3, _LONGEST_PAUSE)
        self._gone = gone
        self._alive = alive
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="perdure-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops renewing; returns at once."""
        self._stop.set()

    def _renew(self) -> None:
        pause = self._pause
        try:
            while not self._stop.wait(pause) and self._alive():
                try:
                    if not self._keeper.renew():
                        if not self._stop.is_set():
                            self._gone()
                        return
                    pause = self._pause
                except Exception as error:  # whatever it is: without a lease the worker's runs are taken away
                    known = isinstance(error, PerdureError)
                    logger.warning("the lease could not be renewed (%s); trying again", error, exc_info=not known)
                    pause = min(self._pause, 0.5)
        finally:
            self._keeper.close()
