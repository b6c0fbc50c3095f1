"""Threads that own a connection each: one writes, with group commit, and one reads."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

from perdure.errors import PerdureError, StoreError, StoreUnavailable
from perdure.model import Millis
from perdure.stores.base import Topic
from perdure.stores.sqlite.connect import patiently
from perdure.stores.sqlite.errors import translate
from perdure.stores.sqlite.sql import load

T = TypeVar("T")
Lane: TypeAlias = tuple[str, str, str]
"""Queue, workflow and version."""
Lanes: TypeAlias = dict[Lane, int]

GROUP = 256
"""The most operations that are committed together: it bounds how long the first one of them waits."""

_LOCKED = 1.0
"""Seconds that what was handed in before the end may wait for a lock that somebody holds."""

_LONGEST_END = 2.0
"""Seconds that closing takes, at most: a thread that a disk holds up is left to itself then."""

_NOW = load("read")["now"]

logger = logging.getLogger("perdure.store")


class Transaction:
    """What an operation works with: statements, the time, and what to tell others of once it is committed."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], Millis] | None, lanes: Lanes) -> None:
        self.connection = connection
        self.lanes = lanes
        """Numbers of lanes, as far as they are known; forgotten when a transaction is rolled back."""
        self.tell: set[Topic] = set()
        self.began = math.inf
        """When it got the lock, by the clock of `time.monotonic`."""
        self.known_now: Millis | None = clock() if clock else None
        """The store's time, once it is known: a statement may bring it along."""

    @property
    def now(self) -> Millis:
        """The store's time, the same for all operations of the transaction."""
        if self.known_now is None:
            self.known_now = int(self.row(_NOW)[0])
        return self.known_now

    def row(self, sql: str, params: Mapping[str, object] | None = None) -> tuple[Any, ...]:
        """The first row of a statement that always has one."""
        return self.connection.execute(sql, params or {}).fetchone()

    def first(self, sql: str, params: Mapping[str, object]) -> tuple[Any, ...] | None:
        """The first row of a statement, if there is any."""
        return self.connection.execute(sql, params).fetchone()

    def change(self, sql: str, params: Mapping[str, object] | Sequence[object]) -> int:
        """Runs a statement that writes; returns how many rows it touched, without those that triggers touched."""
        return self.connection.execute(sql, params).rowcount


Operation: TypeAlias = Callable[[Transaction], T]


class _Job(Generic[T]):
    """An operation and whoever waits for it: a future of a loop, or of a thread when there is no loop."""

    __slots__ = ("future", "loop", "operation")

    def __init__(
        self,
        operation: Operation[T],
        future: asyncio.Future[T] | Future[T],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.operation = operation
        self.future = future
        self.loop = loop


_AnyJob: TypeAlias = _Job[Any]
_Outcome: TypeAlias = tuple[bool, Any]
"""Whether it went well, and the result or the error."""


class Executor:
    """Runs operations on its connection, in its thread, in the order in which they were handed in.

    All operations that wait are run in one transaction and committed once. One that fails takes nothing of the others
    with it; a commit that fails fails them all.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        name: str,
        *,
        begin: str,
        busy_timeout: int = 0,
        clock: Callable[[], Millis] | None,
        before_commit: Callable[[Transaction], None] = lambda _: None,
        after_commit: Callable[[sqlite3.Connection, set[Topic]], None] = lambda _, __: None,
    ) -> None:
        self._connection = connection
        self._name = name
        self._begin = begin
        self._busy_timeout = busy_timeout
        self._clock = clock
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._lanes: Lanes = {}
        self._pid = os.getpid()
        self._queue: SimpleQueue[_AnyJob | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._until = math.inf
        self._thread = threading.Thread(target=self._work, name="perdure-sqlite", daemon=True)
        self._thread.start()

    async def run(self, operation: Operation[T]) -> T:
        """Runs an operation and waits for its commit, in any event loop. Cancelling does not undo it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._submit(_Job(operation, future, loop))
        return await future

    def run_blocking(self, operation: Operation[T]) -> T:
        """Like `run`, for a thread without an event loop."""
        future: Future[T] = Future()
        self._submit(_Job(operation, future))
        return future.result()

    def close(self) -> None:
        """Finishes what was handed in, as far as the file isn't locked, then closes the connection. Blocks, for a
        bounded time; may be repeated."""
        self.end()
        if self._pid == os.getpid():
            self._thread.join(_LONGEST_END)

    def end(self) -> None:
        """Takes no more, and begins to close. Does not block."""
        if self._pid != os.getpid():
            return  # The lock may have been held at the fork.
        with self._lock:
            if not self._closed:
                self._until = time.monotonic() + _LOCKED
                self._closed = True
                self._queue.put(None)

    def _submit(self, job: _AnyJob) -> None:
        if self._pid != os.getpid():
            raise StoreError(f"the store {self._name} was opened before a fork; open a store of its own in the child")
        # The lock makes sure that nothing comes behind the end mark, where nobody would ever answer it.
        with self._lock:
            if self._closed:
                raise StoreError(f"the store {self._name} is closed")
            self._queue.put(job)

    def _work(self) -> None:
        try:
            open_ = True
            while open_:
                jobs, open_ = self._take()
                if jobs:
                    self._survive(jobs)
        finally:
            self._leave_nobody_waiting()
            self._connection.close()

    def _survive(self, jobs: list[_AnyJob]) -> None:
        """Runs a group. Whatever goes wrong with it, the thread goes on and nobody waits in vain."""
        try:
            self._run_group(jobs)
        except BaseException as error:
            logger.exception("the thread of the store %s met an error that it did not expect", self._name)
            self._roll_back()
            text = f"the store {self._name} may not have done what it was asked to: {error!r}"
            _resolve(jobs, [(False, StoreUnavailable(text)) for _ in jobs])

    def _leave_nobody_waiting(self) -> None:
        """Nothing is left in the queue, unless something ended the thread."""
        with self._lock:
            self._closed = True
        jobs: list[_AnyJob] = []
        while not self._queue.empty():
            job = self._queue.get()
            if job is not None:
                jobs.append(job)
        _resolve(jobs, [(False, StoreError(f"the store {self._name} is closed")) for _ in jobs])

    def _take(self) -> tuple[list[_AnyJob], bool]:
        jobs: list[_AnyJob] = []
        job = self._queue.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == GROUP:
                return jobs, True
            try:
                job = self._queue.get_nowait()
            except Empty:
                return jobs, True
        return jobs, False

    def _run_group(self, jobs: list[_AnyJob]) -> None:
        transaction = self._transaction()
        try:
            outcomes = self._attempt(jobs, transaction, alone=False)
        except Exception as error:
            self._roll_back()
            if len(jobs) == 1 or isinstance(translate(error, self._name), StoreUnavailable):
                # What makes the store unavailable is no fault of one operation.
                outcomes = [(False, translate(error, self._name)) for _ in jobs]
            else:
                # Savepoints cost two steps for each operation, so that they are only set when one has failed.
                transaction = self._transaction()
                outcomes = self._attempt_apart(jobs, transaction)
        _resolve(jobs, outcomes)
        if transaction.tell:
            try:
                self._after_commit(self._connection, transaction.tell)
            except sqlite3.Error:
                pass  # A hint is lost, and polling finds what it was about.
            except Exception:
                logger.exception("wake-ups of the store %s were lost; work is found by polling", self._name)

    def _attempt_apart(self, jobs: list[_AnyJob], transaction: Transaction) -> list[_Outcome]:
        try:
            return self._attempt(jobs, transaction, alone=True)
        except Exception as error:
            self._roll_back()
            return [(False, translate(error, self._name)) for _ in jobs]

    def _attempt(self, jobs: list[_AnyJob], transaction: Transaction, *, alone: bool) -> list[_Outcome]:
        connection = self._connection
        patiently(lambda: connection.execute(self._begin), self._busy_timeout, lambda: self._until)
        transaction.began = time.monotonic()
        outcomes: list[_Outcome] = []
        start = connection.total_changes
        for job in jobs:
            before = connection.total_changes
            if alone:
                connection.execute("SAVEPOINT operation")
            try:
                outcomes.append((True, job.operation(transaction)))
            except Exception as error:
                if isinstance(error, PerdureError) and connection.total_changes == before:
                    pass  # It refused before it wrote anything: there is nothing to undo.
                elif alone and connection.in_transaction:
                    connection.execute("ROLLBACK TO operation")
                    self._lanes.clear()
                else:
                    raise
                outcomes.append((False, translate(error, self._name)))
            if alone:
                connection.execute("RELEASE operation")
        if connection.total_changes != start:
            self._before_commit(transaction)
        connection.execute("COMMIT")
        return outcomes

    def _transaction(self) -> Transaction:
        return Transaction(self._connection, self._clock, self._lanes)

    def _roll_back(self) -> None:
        self._lanes.clear()
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # SQLite rolls back by itself when it can't go on; the first error is the one that tells.


def _resolve(jobs: list[_AnyJob], outcomes: list[_Outcome]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], _Outcome]]] = defaultdict(list)
    for job, outcome in zip(jobs, outcomes, strict=True):
        if job.loop is not None and isinstance(job.future, asyncio.Future):
            by_loop[job.loop].append((job.future, outcome))
        else:
            _set(job.future, outcome)
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_all, answers)
        except RuntimeError:
            pass  # The loop is closed: nobody waits any more.


def _set_all(answers: list[tuple[asyncio.Future[Any], _Outcome]]) -> None:
    for future, outcome in answers:
        _set(future, outcome)


def _set(future: asyncio.Future[Any] | Future[Any], outcome: _Outcome) -> None:
    if future.done():
        return
    well, value = outcome
    if well:
        future.set_result(value)
    else:
        future.set_exception(value)
