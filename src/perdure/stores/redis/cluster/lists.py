"""Lists of runs, and what is counted of them, over all partitions.

Runs are numbered by time in each partition, so the numbers of different ones can be compared. The position of a run is
made of its number and its partition.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from perdure.model import Count, FailureCause, LimitRecord, QueueReport, RunQuery, RunRecord, State, WorkerRecord
from perdure.stores.redis import lists, queues, reads
from perdure.stores.redis.budgets import Row, left_of
from perdure.stores.redis.cluster import limits
from perdure.stores.redis.cluster.parts import together
from perdure.stores.redis.cluster.places import Places
from perdure.stores.redis.session import Session
from perdure.stores.shared.queues import compose

_ALL = 1_000_000_000


def placed(record: RunRecord, session: Session) -> RunRecord:
    """A run of a partition, with its position among all."""
    record.position = record.position * len(session.redis.prefixes) + session.partition
    return record


async def list_runs(places: Places, query: RunQuery) -> list[RunRecord]:
    """Runs by filters, in the order of enqueueing or against it."""
    found = await together(_list(session, query) for session in await _asked(places, query))
    merged = sorted(
        (record for records in found for record in records),
        key=lambda record: record.position,
        reverse=not query.oldest_first,
    )
    return merged[: query.limit]


async def causes(places: Places, query: RunQuery) -> list[FailureCause]:
    """Failed runs by cause, most first."""

    async def of(session: Session) -> list[FailureCause]:
        return await lists.causes(session, replace(_behind(query, session), limit=_ALL))

    merged: dict[tuple[str, str], FailureCause] = {}
    for found in await together(of(session) for session in await _asked(places, query)):
        for each in found:
            known = merged.setdefault((each.workflow, each.cause), each)
            if known is not each:
                latest = max(known, each, key=lambda cause: cause.last_at)
                runs = known.runs + each.runs
                merged[each.workflow, each.cause] = replace(latest, runs=runs)
    return sorted(merged.values(), key=lambda cause: (-cause.runs, -cause.last_at))[: query.limit]


async def retry_many(places: Places, query: RunQuery, *, dry_run: bool) -> list[str]:
    """Queues failed (or cancelled) runs once more; returns the ids of those that it does, or would."""
    asked = query.states or [State.FAILED]
    states = [state for state in asked if state in (State.FAILED, State.CANCELLED)]
    if not states:
        return []
    records = await list_runs(places, replace(query, states=states))
    partitions: defaultdict[int, list[str]] = defaultdict(list)
    for record in records:
        partitions[record.position % len(places.parts.sessions)].append(record.id)
    done: set[str] = set()

    async def retry(session: Session, ids: list[str]) -> None:
        done.update(await lists.retry_all(session, ids, dry_run=dry_run))

    await places.parts.some(partitions, retry)
    return [record.id for record in records if record.id in done]


async def counts(places: Places) -> list[Count]:
    """How many runs of each workflow are in each state, by queue."""
    found: Counter[tuple[str, str, State]] = Counter()
    for rows in await places.parts.each(reads.counts):
        for row in rows:
            found[row.queue, row.workflow, row.state] += row.runs
    return [Count(*which, runs) for which, runs in sorted(found.items())]


async def workers(places: Places) -> list[WorkerRecord]:
    """The incarnations that the first partition knows, with what they own in all."""
    first, *others = await places.parts.each(reads.workers)
    known = {record.id: record for record in first}
    for record in (each for records in others for each in records):
        if record.id in known:
            known[record.id].running += record.running
            known[record.id].owned_sessions += record.owned_sessions
    return first


async def queue_reports(places: Places) -> list[QueueReport]:
    """What is in each queue."""
    found = await places.parts.each(queues.look)
    records = await limits.limits(places.parts)
    rows = [_budget(record, found) for record in records]
    running = [each for one in found for each in one.running]
    left = left_of(rows, running)
    return compose(_merged(row for one in found for row in one.rows), records, left, found[0].now)


def _merged(rows: Iterable[queues.Row]) -> list[queues.Row]:
    """Rows of one kind of a lane as one."""
    merged: dict[tuple[str, str, str, bool, str | None], queues.Row] = {}
    for row in rows:
        known = merged.get(row[:5])
        if known is not None and row.runs is not None:
            times = [each.oldest for each in (known, row) if each.oldest is not None]
            merged[row[:5]] = row._replace(runs=row.runs + (known.runs or 0), oldest=min(times, default=None))
        elif known is None:
            merged[row[:5]] = row
    return [*merged.values()]


def _budget(record: LimitRecord, found: Sequence[queues.Found]) -> Row:
    """What holds for a scope, with what all partitions have used of its rate: each has a part of that."""
    row, rate = Row(record.scope.kind, record.scope.name, record.limits.running), record.limits.rate
    if rate is not None:
        row.count, row.period, row.burst, row.at = rate.count, rate.period, rate.burst, found[0].now
        debts = [
            max(0, each.debt - max(0, row.at - each.at) * rate.count)
            for one in found
            for each in one.budgets
            if (each.kind, each.name) == (row.kind, row.name)
        ]
        row.debt = sum(debts) // len(found)
    return row


async def _asked(places: Places, query: RunQuery) -> Sequence[Session]:
    """The partitions that have runs of a query."""
    parts = places.parts
    if query.group is not None:
        return [parts.sessions[parts.home(query.group)]]
    if query.parent is not None:
        return [parts.sessions[(await places.locate([query.parent]))[query.parent]]]
    return parts.sessions


async def _list(session: Session, query: RunQuery) -> list[RunRecord]:
    return [placed(record, session) for record in await lists.list_runs(session, _behind(query, session))]


def _behind(query: RunQuery, session: Session) -> RunQuery:
    """A query as a partition takes it: behind the number of its own that comes before the position."""
    if query.after is None:
        return query
    partitions, partition = len(session.redis.prefixes), session.partition
    if query.oldest_first:
        return replace(query, after=(query.after - partition) // partitions)
    return replace(query, after=-((partition - query.after) // partitions))
