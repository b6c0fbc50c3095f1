"""The store on a Redis Cluster: the contract, over all partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from perdure.stores.redis import batches as single_batches
from perdure.stores.redis import control, doctor, formats, libraries, listen, reads, timetable
from perdure.stores.redis import limits as single_limits
from perdure.stores.redis import retention as single_retention
from perdure.stores.redis.cluster import batches, lists, retention, schedules, workers
from perdure.stores.redis.cluster import limits as limiting
from perdure.stores.redis.cluster.exchange import Exchanger
from perdure.stores.redis.cluster.parts import Parts
from perdure.stores.redis.cluster.places import Places
from perdure.stores.redis.cluster.rounds import Wakes
from perdure.stores.redis.connect import Redis
from perdure.stores.redis.keeper import LeaseKeeper
from perdure.stores.redis.scripts import load
from perdure.stores.redis.session import Session, encode
from perdure.stores.redis.url import Location


class ClusterStore:
    """One namespace of a cluster. See `perdure.stores.base.Store` for the verbs."""

    def __init__(self, location: Location, *, now: Callable[[], Millis] | None = None) -> None:
        self._location = location
        self._redis = Redis(location)
        self._wakes = Wakes(len(self._redis.prefixes))
        self._parts = Parts(self._redis, now, self._wakes.note)
        self._places = Places(self._parts)
        self._exchanger = Exchanger(self._places, self._wakes)

    @property
    def calls(self) -> int:
        return self._redis.calls

    @property
    def parts(self) -> int:
        return len(self._parts.sessions)

    @property
    def beside(self) -> bool:
        return True

    async def busy(self) -> float | None:
        return None

    # --- lifecycle

    async def open(self) -> None:
        """Connects, and refuses a namespace that is spread over another number of partitions."""
        await self._redis.open()
        try:
            await formats.check(self._parts.first, self._location.name)
        except BaseException:
            await self._redis.close()
            raise
        asked = len(self._parts.sessions)
        kept = await self._parts.first.call("partitions", {"partitions": asked}, durable=True)
        if kept != asked:
            await self._redis.close()
            raise StoreError(
                f"the store {self._location.name} has its runs in {kept} partitions, and not in {asked}: write"
                f" partitions={kept}. To change it, let the runs end and begin with another namespace"
            )

    async def close(self) -> None:
        await self._parts.reach.close()
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
        if topic is not Topic.WORK:
            return await listen.subscribe(self._location, topic, wake)

        def wake_all() -> None:
            self._wakes.note_all()
            wake()

        def wake_for(_: bytes, partition: int) -> None:
            self._wakes.note(partition)
            wake()

        subscription = await listen.subscribe(self._location, topic, wake_all, wake_for)
        return _Listening(subscription, self._wakes)

    async def now(self) -> Millis:
        return await reads.now(self._parts.first)

    # --- clients

    async def enqueue(self, starts: Sequence[Start]) -> list[Started]:
        return await self._places.enqueue(starts)

    async def signal(self, signal: Signal) -> None:
        await self._places.at(signal.run_id, lambda db: control.deliver(db, signal))

    async def cancel(self, run_id: str, reason: str, *, children: bool = True) -> State:
        return await self._places.at(run_id, lambda db: control.cancel(db, run_id, reason, children=children))

    async def retry(self, run_id: str, *, from_key: str | None = None) -> None:
        await self._places.at(run_id, lambda db: control.retry(db, run_id, from_key))

    async def load(self, run_id: str) -> RunRecord | None:
        async def load_run(db: Session) -> RunRecord | None:
            record = await reads.load_run(db, run_id)
            return None if record is None else lists.placed(record, db)

        return await self._places.at(run_id, load_run, lambda record: record is None)

    async def ended(self, run_ids: Sequence[str]) -> list[Ended]:
        return await self._places.ended(run_ids)

    async def missing(self, run_ids: Sequence[str]) -> list[str]:
        return await self._places.missing(run_ids)

    async def history(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Checkpoint]:
        return await self._places.at(
            run_id, lambda db: reads.history(db, run_id, after, limit), lambda found: not found
        )

    async def find(self, run_id: str, key: str) -> Checkpoint | None:
        return await self._places.at(run_id, lambda db: reads.find(db, run_id, key), lambda found: found is None)

    async def signals(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Arrived]:
        return await self._places.at(
            run_id, lambda db: reads.signals(db, run_id, after, limit), lambda found: not found
        )

    async def runs(self, query: RunQuery) -> list[RunRecord]:
        return await lists.list_runs(self._places, query)

    async def ahead(self, run_id: str) -> int:
        """Counts those of its own partition: the others go on side by side."""
        return await self._places.at(run_id, lambda db: reads.ahead(db, run_id))

    async def delete(self, run_id: str, *, force: bool = False) -> int:
        removed = await self._places.at(run_id, lambda db: single_retention.delete(db, run_id, force=force))
        await self._places.tidy()
        return removed

    async def retry_many(self, query: RunQuery, *, dry_run: bool = False) -> list[str]:
        return await lists.retry_many(self._places, query, dry_run=dry_run)

    async def failures(self, query: RunQuery) -> list[FailureCause]:
        return await lists.causes(self._places, query)

    async def label(self, run_id: str, labels: dict[str, str]) -> None:
        await self._places.at(run_id, lambda db: single_batches.label(db, run_id, labels))

    async def open_batch(self, batch: str, starts: Sequence[Start], callback: Start | None) -> list[Started]:
        return await batches.open_batch(self._places, batch, starts, callback)

    async def batch(self, batch: str) -> BatchRecord | None:
        return await batches.load_batch(self._places, batch)

    async def counts(self) -> list[Count]:
        return await lists.counts(self._places)

    async def workers(self) -> list[WorkerRecord]:
        return await lists.workers(self._places)

    # --- limits and pauses

    async def set_limits(self, scope: Scope, limits: Limits, who: str, *, declared: bool = False) -> LimitRecord:
        return await limiting.set_limits(self._parts, scope, limits, who, declared=declared)

    async def pause(self, scope: Scope, who: str, *, paused: bool = True) -> LimitRecord:
        return await limiting.pause(self._parts, scope, who, paused=paused)

    async def limits(self) -> list[LimitRecord]:
        return await limiting.limits(self._parts)

    async def revisions(self, scope: Scope | None = None, *, limit: int = 50) -> list[Revision]:
        return await single_limits.revisions(self._parts.first, scope, limit)

    async def queues(self) -> list[QueueReport]:
        return await lists.queue_reports(self._places)

    # --- schedules and retention

    async def put_schedule(self, schedule: Schedule, next_slot: Millis | None, *, declared: bool) -> ScheduleRecord:
        return await schedules.put(self._parts, schedule, next_slot, declared=declared)

    async def schedules(self) -> list[ScheduleRecord]:
        return await schedules.listed(self._parts)

    async def pause_schedule(self, name: str) -> ScheduleRecord:
        return await timetable.pause(await schedules.find(self._parts, name), name)

    async def resume_schedule(self, name: str, next_slot: Millis | None) -> ScheduleRecord:
        return await timetable.resume(await schedules.find(self._parts, name), name, next_slot)

    async def remove_schedule(self, name: str) -> None:
        await timetable.remove(await schedules.find(self._parts, name), name)

    async def prune(self, policies: Sequence[Retention], *, limit: int) -> int:
        return await retention.prune(self._places, policies, limit)

    # --- workers

    async def register(self, worker: Registration) -> int:
        number = await workers.register(self._parts, worker)
        self._exchanger.begin(number, worker)
        return number

    def keeper(self, worker: int, lease: Millis) -> Keeper:
        asked = encode({"worker": worker, "lease": lease})
        return LeaseKeeper(self._location, lease, load("renew"), lambda: (self._parts.first.clock(), asked))

    async def exchange(self, exchange: Exchange) -> Exchanged:
        return await self._exchanger.exchange(exchange)

    async def reclaim(self, asked: Millis | None = None) -> Reclaimed:
        return await workers.reclaim(self._parts, asked)

    async def bury(self, name: str) -> int:
        return await workers.bury(self._parts, name)

    async def retire(self, worker: int) -> None:
        await workers.retire(self._parts, worker)
        self._exchanger.end(worker)


class _Listening:
    """A subscription to wake-ups for work, which counts as long as it is open."""

    def __init__(self, subscription: Subscription, wakes: Wakes) -> None:
        self._subscription = subscription
        self._wakes = wakes
        wakes.listeners += 1
        wakes.note_all()

    async def close(self) -> None:
        self._wakes.listeners -= 1
        await self._subscription.close()
