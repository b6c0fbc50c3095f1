"""The store on Redis or Valkey: each verb of the contract is one atomic script, and hardly ever more than one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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
from perdure.stores.redis import (
    batches,
    control,
    doctor,
    formats,
    libraries,
    listen,
    lists,
    queues,
    reads,
    results,
    retention,
    timetable,
)
from perdure.stores.redis import exchange as exchanging
from perdure.stores.redis import limits as limiting
from perdure.stores.redis import (
    starts as starting,
)
from perdure.stores.redis import worker as workers
from perdure.stores.redis.connect import Redis
from perdure.stores.redis.keeper import LeaseKeeper
from perdure.stores.redis.pushes import Hands
from perdure.stores.redis.scripts import load
from perdure.stores.redis.session import Session, encode
from perdure.stores.redis.url import Location
from perdure.stores.shared.results import Results


class RedisStore:
    """One namespace of a server. See `perdure.stores.base.Store` for the verbs."""

    def __init__(self, location: Location, *, now: Callable[[], Millis] | None = None) -> None:
        self._location = location
        self._redis = Redis(location)
        self._db = Session(self._redis, now)
        self._hands = Hands(location)
        self._results = Results()

    @property
    def calls(self) -> int:
        return self._redis.calls

    @property
    def parts(self) -> int:
        return 1

    @property
    def beside(self) -> bool:
        return True

    async def busy(self) -> float | None:
        return await reads.busy(self._db)

    # --- lifecycle

    async def open(self) -> None:
        """Connects, has the servers know the functions, and refuses those that can't be the store, and a namespace that
        newer code keeps in another way."""
        await self._redis.open()
        try:
            await formats.check(self._db, self._location.name)
        except BaseException:
            await self._redis.close()
            raise

    async def close(self) -> None:
        await self._redis.close()

    async def migrate(self) -> list[str]:
        """There is no schema: what other versions have left on the servers goes."""
        return await libraries.drop(self._redis)

    async def pending(self) -> list[str]:
        return await libraries.pending(self._redis)

    async def script(self) -> str:
        return ""

    async def check(self) -> list[Finding]:
        return await doctor.examine(self._location)

    async def subscribe(self, topic: Topic, wake: Callable[[], None]) -> Subscription:
        if topic is Topic.ENDED:
            return await self._results.listen(wake, partial(results.listen, self._location))
        if topic is not Topic.WORK:
            return await listen.subscribe(self._location, topic, wake)

        def hint() -> None:
            self._hands.hint()
            wake()

        return await self._hands.listen(await listen.subscribe(self._location, topic, hint), wake)

    async def now(self) -> Millis:
        return await reads.now(self._db)

    # --- clients

    async def enqueue(self, starts: Sequence[Start]) -> list[Started]:
        return await self._results.enqueue(starts, partial(starting.enqueue, self._db))

    async def signal(self, signal: Signal) -> None:
        await control.deliver(self._db, signal)

    async def cancel(self, run_id: str, reason: str, *, children: bool = True) -> State:
        return await control.cancel(self._db, run_id, reason, children=children)

    async def retry(self, run_id: str, *, from_key: str | None = None) -> None:
        self._results.forget([run_id])
        await control.retry(self._db, run_id, from_key)

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
        return await lists.list_runs(self._db, query)

    async def ahead(self, run_id: str) -> int:
        return await reads.ahead(self._db, run_id)

    async def delete(self, run_id: str, *, force: bool = False) -> int:
        self._results.forget([run_id])
        return await retention.delete(self._db, run_id, force=force)

    async def retry_many(self, query: RunQuery, *, dry_run: bool = False) -> list[str]:
        return await lists.retry_many(self._db, query, dry_run=dry_run)

    async def failures(self, query: RunQuery) -> list[FailureCause]:
        return await lists.causes(self._db, query)

    async def label(self, run_id: str, labels: dict[str, str]) -> None:
        await batches.label(self._db, run_id, labels)

    async def open_batch(self, batch: str, starts: Sequence[Start], callback: Start | None) -> list[Started]:
        return await batches.open_batch(self._db, batch, starts, callback)

    async def batch(self, batch: str) -> BatchRecord | None:
        return await batches.load_batch(self._db, batch)

    async def counts(self) -> list[Count]:
        return await reads.counts(self._db)

    async def workers(self) -> list[WorkerRecord]:
        return await reads.workers(self._db)

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
        return await timetable.put(self._db, schedule, next_slot, declared=declared)

    async def schedules(self) -> list[ScheduleRecord]:
        return await timetable.listed(self._db)

    async def pause_schedule(self, name: str) -> ScheduleRecord:
        return await timetable.pause(self._db, name)

    async def resume_schedule(self, name: str, next_slot: Millis | None) -> ScheduleRecord:
        return await timetable.resume(self._db, name, next_slot)

    async def remove_schedule(self, name: str) -> None:
        await timetable.remove(self._db, name)

    async def prune(self, policies: Sequence[Retention], *, limit: int) -> int:
        return await retention.prune(self._db, policies, limit)

    # --- workers

    async def register(self, worker: Registration) -> int:
        return await workers.register(self._db, worker)

    def keeper(self, worker: int, lease: Millis) -> Keeper:
        asked = encode({"worker": worker, "lease": lease})
        return LeaseKeeper(self._location, lease, load("renew"), lambda: (self._db.clock(), asked))

    async def exchange(self, exchange: Exchange) -> Exchanged:
        return await exchanging.exchange(self._db, self._hands, exchange)

    async def reclaim(self, asked: Millis | None = None) -> Reclaimed:
        return await workers.reclaim(self._db, asked)

    async def bury(self, name: str) -> int:
        return await workers.bury(self._db, name)

    async def retire(self, worker: int) -> None:
        await self._hands.forget(worker)
        await workers.retire(self._db, worker)
