"""Keeping the lease of an incarnation: one small write, from whatever thread, beside all that the store does."""

from __future__ import annotations

import functools
import math
import sqlite3
import threading
import time
from collections.abc import Callable

from perdure.model import Millis
from perdure.stores.sqlite.connect import Location, connect, patiently
from perdure.stores.sqlite.errors import translate
from perdure.stores.sqlite.executor import Executor, Transaction
from perdure.stores.sqlite.sql import load

_RENEW = load("worker")["renew"]


class FileKeeper:
    """Renews on a connection of its own, which it opens at the first renewal and again after an error.

    `still_there` is asked first: a lease in a file that was removed is none, and to connect would make another file.
    """

    def __init__(
        self,
        location: Location,
        still_there: Callable[[], None],
        worker: int,
        lease: Millis,
        clock: Callable[[], Millis] | None,
    ) -> None:
        self._location = location
        self._still_there = still_there
        self._worker = worker
        self._lease = lease
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._until = math.inf

    def renew(self) -> bool:
        with self._lock:
            self._still_there()
            if self._connection is None:
                self._connection = connect(self._location)
            now = self._clock() if self._clock else None
            try:
                params = {"worker": self._worker, "lease": self._lease, "now": now}
                renew = functools.partial(self._connection.execute, _RENEW, params)
                cursor = patiently(renew, self._location.busy_timeout, lambda: self._until)
            except sqlite3.Error as error:
                self._connection.close()
                self._connection = None
                raise translate(error, self._location.name) from error
            return cursor.rowcount == 1

    def close(self) -> None:
        self._until = time.monotonic()  # A renewal that waits for the file gives up.
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class MemoryKeeper:
    """Renews through the one connection that a store in memory has."""

    def __init__(self, writer: Executor, worker: int, lease: Millis) -> None:
        self._writer = writer
        self._worker = worker
        self._lease = lease

    def renew(self) -> bool:
        return self._writer.run_blocking(self._renew)

    def close(self) -> None:
        """Has nothing to close: the connection is the store's."""

    def _renew(self, transaction: Transaction) -> bool:
        return transaction.change(_RENEW, {"worker": self._worker, "lease": self._lease, "now": transaction.now}) == 1
