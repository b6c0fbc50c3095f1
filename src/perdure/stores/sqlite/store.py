"""The store on SQLite: the verbs of the contract, each handed to the thread that writes or to the one that reads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from perdure.errors import StoreError
from perdure.model import (
    Arrived,
    BatchRecord,
    Checkpoint,
    Count,
    Ended,
    FailureCause,
    LimitRecord,
    Limits,
    Millis,
    QueueReport,
    Retention,
    Revision,
    RunQuery,
    RunRecord,
    Schedule,
    ScheduleRecord,
    Scope,
    Signal,
    Start,
    Started,
    State,
    WorkerRecord,
)
from perdure.stores.base import Finding, Keeper, Reclaimed, Registration, Subscription, Topic
from perdure.stores.exchange import PAGE, Exchange, Exchanged
from perdure.stores.sqlite import batches, control, doctor, lists, migrate, queues, reads, retention, schedules
from perdure.stores.sqlite import limits as limiting
from perdure.stores.sqlite import worker as workers
from perdure.stores.sqlite.connect import Location, connect
from perdure.stores.sqlite.enqueue import enqueue
from perdure.stores.sqlite.exchange import idle, perform, silent
from perdure.stores.sqlite.executor import Executor, Operation, Transaction
from perdure.stores.sqlite.filesystem import watch_file
from perdure.stores.sqlite.keeper import FileKeeper, MemoryKeeper
from perdure.stores.sqlite.log import LogRoom
from perdure.stores.sqlite.sql import migrations
from perdure.stores.sqlite.wake import Wakeups

T = TypeVar("T")


class SqliteStore:
    """Runs in one SQLite file that many processes may share, or in memory for one.

    It may be used from any thread and event loop. After a fork it refuses: the child opens a store of its own.
    """

    def __init__(self, location: Location, *, now: Callable[[], Millis] | None = None) -> None:
        self._location = location
        self._clock = now
        self._calls = 0
        self._opening = threading.Lock()
        self._writer: Executor | None = None
        self._reader: Executor | None = None
        self._wakeups: Wakeups | None = None
        self._still_there = watch_file(None, location.name)

    @property
    def calls(self) -> int:
        return self._calls

    @property
    def parts(self) -> int:
        return 1

    @property
    def beside(self) -> bool:
        return False

    async def busy(self) -> float | None:
        return None

    # --- lifecycle

    async def open(self) -> None:
        """Connects, and makes or migrates the schema. Opening an open store does nothing."""
        if self._writer is None:
            await asyncio.to_thread(self._open)

    def _open(self) -> None:
        with self._opening:
            if self._writer is None:
                self._connect()

    def _connect(self) -> None:
        wakeups = Wakeups(shared=self._location.path is not None)
        connection = connect(self._location)
        try:
            migrate.migrate(connection, self._location.name, self._location.busy_timeout)
            reading = connect(self._location, read_only=True) if self._location.path is not None else None
        except BaseException:
            connection.close()
            raise
        self._still_there = still_there = watch_file(self._location.path, self._location.name)
        room = LogRoom(self._location.path) if self._location.path and self._location.synchronous == "full" else None

        def before_commit(transaction: Transaction) -> None:
            still_there()
            if room is not None:
                room.make()
            wakeups.prune(transaction)
            if self._clock is None:
                workers.lengthen_leases(transaction)

        self._wakeups = wakeups
        self._writer = self._reader = Executor(
            connection,
            self._location.name,
            begin="BEGIN IMMEDIATE",
            busy_timeout=self._location.busy_timeout,
            clock=self._clock,
            before_commit=before_commit,
            after_commit=wakeups.tell,
        )
        if reading is not None:
            self._reader = Executor(
                reading, self._location.name, begin="BEGIN", busy_timeout=self._location.busy_timeout, clock=self._clock
            )

    async def close(self) -> None:
        """Finishes what was begun and lets go of the file. Closing a closed store does nothing."""
        writer, reader, wakeups = self._writer, self._reader, self._wakeups
        self._writer = self._reader = self._wakeups = None
        if writer is None or reader is None or wakeups is None:
            return
        await asyncio.to_thread(_close, writer, reader)
        wakeups.close()

    async def migrate(self) -> list[str]:
        return await asyncio.to_thread(self._migrate)

    def _migrate(self) -> list[str]:
        if self._location.path is None:
            return []  # It was made, whole, when it was opened.
        connection = connect(self._location)
        try:
            return migrate.migrate(connection, self._location.name, self._location.busy_timeout)
        finally:
            connection.close()

    async def pending(self) -> list[str]:
        return [title for _, title, _ in await asyncio.to_thread(self._missing)]

    async def script(self) -> str:
        return await asyncio.to_thread(lambda: migrate.script(self._missing()))

    def _missing(self) -> list[tuple[int, str, str]]:
        path = self._location.path
        if path is None:
            return []
        if not os.path.lexists(path):
            return migrations()  # To look would make it.
        connection = connect(self._location, read_only=True)
        try:
            return migrate.missing(connection, self._location.name, self._location.busy_timeout)
        finally:
            connection.close()

    async def check(self) -> list[Finding]:
        await self.open()
        return await self._read(lambda tx: doctor.examine(tx, self._location))

    async def subscribe(self, topic: Topic, wake: Callable[[], None]) -> Subscription:
        if self._wakeups is None:
            raise self._not_open()
        return await self._wakeups.subscribe(
            topic, wake, self._executor(self._writer).run, self._executor(self._reader).run
        )

    # --- clients

    async def enqueue(self, starts: Sequence[Start]) -> list[Started]:
        return await self._write(lambda tx: enqueue(tx, starts))

    async def signal(self, signal: Signal) -> None:
        return await self._write(lambda tx: control.deliver(tx, signal))

    async def cancel(self, run_id: str, reason: str, *, children: bool = True) -> State:
        return await self._write(lambda tx: control.cancel(tx, run_id, reason, children=children))

    async def retry(self, run_id: str, *, from_key: str | None = None) -> None:
        return await self._write(lambda tx: control.retry(tx, run_id, from_key))

    async def load(self, run_id: str) -> RunRecord | None:
        return await self._read(lambda tx: reads.load_run(tx, run_id))

    async def ended(self, run_ids: Sequence[str]) -> list[Ended]:
        return await self._read(lambda tx: reads.ended(tx, run_ids))

    async def missing(self, run_ids: Sequence[str]) -> list[str]:
        return await self._read(lambda tx: reads.missing(tx, run_ids))

    async def history(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Checkpoint]:
        return await self._read(lambda tx: reads.history(tx, run_id, after, limit))

    async def find(self, run_id: str, key: str) -> Checkpoint | None:
        return await self._read(lambda tx: reads.find(tx, run_id, key))

    async def signals(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Arrived]:
        return await self._read(lambda tx: reads.signals(tx, run_id, after, limit))

    async def runs(self, query: RunQuery) -> list[RunRecord]:
        return await self._read(lambda tx: reads.list_runs(tx, query))

    async def ahead(self, run_id: str) -> int:
        return await self._read(lambda tx: reads.ahead(tx, run_id))

    async def now(self) -> Millis:
        return await self._read(lambda tx: tx.now)

    async def delete(self, run_id: str, *, force: bool = False) -> int:
        return await self._write(lambda tx: retention.delete(tx, run_id, force=force))

    async def retry_many(self, query: RunQuery, *, dry_run: bool = False) -> list[str]:
        if dry_run:
            return await self._read(lambda tx: control.retry_many(tx, lists.retryable(tx, query), dry_run=True))
        return await self._write(lambda tx: control.retry_many(tx, lists.retryable(tx, query), dry_run=False))

    async def failures(self, query: RunQuery) -> list[FailureCause]:
        return await self._read(lambda tx: lists.causes(tx, query))

    async def label(self, run_id: str, labels: dict[str, str]) -> None:
        return await self._write(lambda tx: batches.label(tx, run_id, labels))

    async def open_batch(self, batch: str, starts: Sequence[Start], callback: Start | None) -> list[Started]:
        return await self._write(lambda tx: batches.open_batch(tx, batch, starts, callback))

    async def batch(self, batch: str) -> BatchRecord | None:
        return await self._read(lambda tx: batches.load_batch(tx, batch))

    async def counts(self) -> list[Count]:
        return await self._read(reads.counts)

    async def workers(self) -> list[WorkerRecord]:
        return await self._read(reads.workers)

    # --- limits and pauses

    async def set_limits(self, scope: Scope, limits: Limits, who: str, *, declared: bool = False) -> LimitRecord:
        return await self._write(lambda tx: limiting.set_limits(tx, scope, limits, who, declared=declared))

    async def pause(self, scope: Scope, who: str, *, paused: bool = True) -> LimitRecord:
        return await self._write(lambda tx: limiting.pause(tx, scope, who, paused=paused))

    async def limits(self) -> list[LimitRecord]:
        return await self._read(limiting.limits)

    async def revisions(self, scope: Scope | None = None, *, limit: int = 50) -> list[Revision]:
        return await self._read(lambda tx: limiting.revisions(tx, scope, limit))

    async def queues(self) -> list[QueueReport]:
        return await self._read(queues.report)

    # --- schedules and retention

    async def put_schedule(self, schedule: Schedule, next_slot: Millis | None, *, declared: bool) -> ScheduleRecord:
        return await self._write(lambda tx: schedules.put(tx, schedule, next_slot, declared=declared))

    async def schedules(self) -> list[ScheduleRecord]:
        return await self._read(schedules.listed)

    async def pause_schedule(self, name: str) -> ScheduleRecord:
        return await self._write(lambda tx: schedules.pause(tx, name))

    async def resume_schedule(self, name: str, next_slot: Millis | None) -> ScheduleRecord:
        return await self._write(lambda tx: schedules.resume(tx, name, next_slot))

    async def remove_schedule(self, name: str) -> None:
        return await self._write(lambda tx: schedules.remove(tx, name))

    async def prune(self, policies: Sequence[Retention], *, limit: int) -> int:
        removed = 0
        more = True
        while more and removed < limit:
            # What is to go is looked for without the lock that all writers share.
            due = await self._read(lambda tx, left=limit - removed: retention.due(tx, policies, left))
            if due.nothing:
                break
            more = False
            for part in due.parts():
                gone, changed = await self._write(lambda tx, part=part: retention.prune(tx, part))
                removed += gone
                more |= changed
        return removed

    # --- workers

    async def register(self, worker: Registration) -> int:
        return await self._write(lambda tx: workers.register(tx, worker))

    def keeper(self, worker: int, lease: Millis) -> Keeper:
        if self._location.path is None:
            return MemoryKeeper(self._executor(self._writer), worker, lease)
        return FileKeeper(self._location, self._still_there, worker, lease, self._clock)

    async def exchange(self, exchange: Exchange) -> Exchanged:
        if self._reader is not self._writer and silent(exchange):
            # Polls that find nothing stay away from the lock that the writers of all processes share.
            reply = await self._read(lambda tx: idle(tx, exchange))
            if reply is not None:
                return reply
        return await self._write(lambda tx: perform(tx, exchange))

    async def reclaim(self, asked: Millis | None = None) -> Reclaimed:
        # Each look takes the lock, for no time: who finds it held knows that the others could not renew.
        return await self._write(lambda tx: workers.reclaim(tx, asked))

    async def bury(self, name: str) -> int:
        return await self._write(lambda tx: workers.bury(tx, name))

    async def retire(self, worker: int) -> None:
        return await self._write(lambda tx: workers.retire(tx, worker))

    # --- the two threads

    async def _write(self, operation: Operation[T]) -> T:
        self._calls += 1
        return await self._executor(self._writer).run(operation)

    async def _read(self, operation: Operation[T]) -> T:
        self._calls += 1
        return await self._executor(self._reader).run(operation)

    def _executor(self, executor: Executor | None) -> Executor:
        if executor is None:
            raise self._not_open()
        return executor

    def _not_open(self) -> StoreError:
        return StoreError(f"the store {self._location.name} is not open; open it first")


def _close(*executors: Executor) -> None:
    for executor in executors:
        executor.end()
    for executor in executors:
        executor.close()
