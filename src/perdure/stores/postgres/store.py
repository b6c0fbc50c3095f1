"""The store on PostgreSQL: the verbs of the contract, each a call of one function or statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from perdure.model import (
    MOST_LABELS,
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
from perdure.stores.base import Finding, Keeper, Reclaimed, Registration, Subscription, Topic, Within
from perdure.stores.exchange import PAGE, Exchange, Exchanged
from perdure.stores.postgres import doctor, listen, lists, migrate, queues, reads, results, retention
from perdure.stores.postgres import limits as limiting
from perdure.stores.postgres import starts as starting
from perdure.stores.postgres import worker as workers
from perdure.stores.postgres.callers import caller
from perdure.stores.postgres.exchange import Desk
from perdure.stores.postgres.keeper import LeaseKeeper
from perdure.stores.postgres.pool import Connections
from perdure.stores.postgres.session import Session, encode
from perdure.stores.postgres.told import ToldSubscription, WorkSubscription
from perdure.stores.postgres.url import Location
from perdure.stores.postgres.within import Home, WithinTransaction
from perdure.stores.shared.results import Results
from perdure.stores.shared.schedules import read_schedules


class PostgresStore:
    """A store in one schema of a database on PostgreSQL 14 or newer. It is safe to use from several event loops."""

    def __init__(self, location: Location, *, now: Callable[[], Millis] | None = None) -> None:
        self._location = location
        self._connections = Connections(location)
        self._db = Session(self._connections, location.schema, now)
        self._workers = Session(self._connections, location.schema, now, reserved=True)
        self._work: set[WorkSubscription] = set()
        self._desk = Desk(self._workers, self._look_again)
        self._home = Home(location)
        self._results = Results()

    @property
    def calls(self) -> int:
        return self._connections.calls

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
        """Connects, and refuses a schema that is missing, too old or too new."""
        self._connections.open()
        await migrate.verify(self._location, self._connections.call)

    async def close(self) -> None:
        await self._connections.close()

    async def migrate(self) -> list[str]:
        return await migrate.migrate(self._location)

    async def pending(self) -> list[str]:
        return [migration.name for migration in await migrate.pending(self._location)]

    async def script(self) -> str:
        return migrate.script(self._location, await migrate.pending(self._location))

    async def check(self) -> list[Finding]:
        return await doctor.examine(self._location, self._db.clock())

    async def subscribe(self, topic: Topic, wake: Callable[[], None]) -> Subscription:
        if topic is Topic.ENDED:
            return await self._results.listen(wake, partial(results.listen, self._location, self._db))
        subscription = await listen.subscribe(self._location, topic, wake)
        if topic is Topic.WORK:
            return WorkSubscription(subscription, wake, self._work)
        return await ToldSubscription.begin(self._db, topic, subscription)

    async def now(self) -> Millis:
        return await self._db.time()

    def _look_again(self) -> None:
        for subscription in self._work:
            subscription.wake_soon()

    # --- clients

    async def enqueue(self, starts: Sequence[Start]) -> list[Started]:
        return await self._results.enqueue(starts, partial(starting.enqueue, self._db))

    async def signal(self, signal: Signal) -> None:
        await self._db.get("deliver", self._db.clock(), signal.id, signal.run_id, signal.name, signal.body)

    async def cancel(self, run_id: str, reason: str, *, children: bool = True) -> State:
        return State(await self._db.get("cancel", self._db.clock(), run_id, reason, children))

    async def retry(self, run_id: str, *, from_key: str | None = None) -> None:
        self._results.forget([run_id])
        await self._db.get("retry", self._db.clock(), run_id, from_key)

    async def load(self, run_id: str) -> RunRecord | None:
        return await reads.load_run(self._db, run_id)

    async def ended(self, run_ids: Sequence[str]) -> list[Ended]:
        return await self._results.ended(run_ids, partial(reads.ended, self._db))

    async def missing(self, run_ids: Sequence[str]) -> list[str]:
        return await self._results.missing(run_ids, partial(reads.missing, self._db))

    async def history(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Checkpoint]:
        return await reads.history(self._db, run_id, after, limit)

    async def find(self, run_id: str, key: str) -> Checkpoint | None:
        return await reads.find(self._db, run_id, key)

    async def signals(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Arrived]:
        return await reads.signals(self._db, run_id, after, limit)

    async def runs(self, query: RunQuery) -> list[RunRecord]:
        return await reads.list_runs(self._db, query)

    async def ahead(self, run_id: str) -> int:
        return await reads.ahead(self._db, run_id)

    async def delete(self, run_id: str, *, force: bool = False) -> int:
        self._results.forget([run_id])
        return int(await self._db.get("remove", self._db.clock(), run_id, force))

    async def retry_many(self, query: RunQuery, *, dry_run: bool = False) -> list[str]:
        found = await lists.retryable(self._db, query)
        return list(await self._db.get("retry_many", self._db.clock(), found, dry_run))

    async def failures(self, query: RunQuery) -> list[FailureCause]:
        return await lists.causes(self._db, query)

    async def label(self, run_id: str, labels: dict[str, str]) -> None:
        await self._db.get("set_labels", run_id, encode(labels), MOST_LABELS)

    async def open_batch(self, batch: str, starts: Sequence[Start], callback: Start | None) -> list[Started]:
        return await starting.open_batch(self._db, batch, starts, callback)

    async def batch(self, batch: str) -> BatchRecord | None:
        return await reads.batch(self._db, batch)

    async def counts(self) -> list[Count]:
        return await reads.counts(self._db)

    async def workers(self) -> list[WorkerRecord]:
        return await reads.workers(self._db)

    # --- the application's transactions

    def within(self, connection: object) -> Within:
        return WithinTransaction(self._location, self._home, caller(connection), self._db.clock)

    async def is_over(self, transaction: str) -> bool:
        return bool(await self._db.get("is_over", transaction))

    # --- limits and pauses

    async def set_limits(self, scope: Scope, limits: Limits, who: str, *, declared: bool = False) -> LimitRecord:
        return await limiting.set_limits(self._db, scope, limits, who, declared=declared)

    async def pause(self, scope: Scope, who: str, *, paused: bool = True) -> LimitRecord:
        return await limiting.pause(self._db, scope, who, paused=paused)

    async def limits(self) -> list[LimitRecord]:
        return await limiting.limits(self._db)

    async def revisions(self, scope: Scope | None = None, *, limit: int = 50) -> list[Revision]:
        return await limiting.revisions(self._db, scope, limit)

    async def queues(self) -> list[QueueReport]:
        return await queues.report(self._db)

    # --- schedules and retention

    async def put_schedule(self, schedule: Schedule, next_slot: Millis | None, *, declared: bool) -> ScheduleRecord:
        timing = encode([schedule.cron, schedule.tz, schedule.every, schedule.at])
        text = await self._db.get("put_schedule", schedule.name, encode(schedule), timing, declared, next_slot)
        return read_schedules(text)[0]

    async def schedules(self) -> list[ScheduleRecord]:
        return read_schedules(await self._db.get("schedules", None) or "[]")

    async def pause_schedule(self, name: str) -> ScheduleRecord:
        return read_schedules(await self._db.get("pause_schedule", name, True, None))[0]

    async def resume_schedule(self, name: str, next_slot: Millis | None) -> ScheduleRecord:
        return read_schedules(await self._db.get("pause_schedule", name, False, next_slot))[0]

    async def remove_schedule(self, name: str) -> None:
        await self._db.get("remove_schedule", name)

    async def prune(self, policies: Sequence[Retention], *, limit: int) -> int:
        return await retention.prune(self._db, policies, limit)

    # --- workers

    async def register(self, worker: Registration) -> int:
        return await workers.register(self._workers, self._location, worker)

    def keeper(self, worker: int, lease: Millis) -> Keeper:
        return LeaseKeeper(self._location, worker, lease, self._db.clock)

    async def exchange(self, exchange: Exchange) -> Exchanged:
        return await self._desk.exchange(exchange)

    async def reclaim(self, asked: Millis | None = None) -> Reclaimed:
        return await workers.reclaim(self._workers, asked)

    async def bury(self, name: str) -> int:
        return await workers.bury(self._workers, name)

    async def retire(self, worker: int) -> None:
        await workers.retire(self._workers, worker)
        self._desk.forget(worker)
