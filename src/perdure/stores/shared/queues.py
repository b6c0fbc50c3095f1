"""The queues at one moment, from what a store counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from perdure.budget import Budget, scopes_of
from perdure.model import HeldCount, LimitRecord, Limits, Millis, QueueReport, Scope, ScopeKind, Unserved
from perdure.stores.shared.reasons import keeps

LATELY = 60_000
"""Milliseconds: of what ended before nothing is told."""
_HELD = ("paused", "group", "group paused", "session", "rate", "unserved")


class Row(NamedTuple):
    """How many runs of a lane there are of a kind; of a lane that has none, the lane alone."""

    queue: str
    workflow: str
    version: str
    manned: bool
    """Whether a live worker serves the queue."""
    what: str | None = None
    runs: int | None = None
    oldest: Millis | None = None
    """When the first of them was made, of those that are ready."""


class _Queue(Struct):
    """What is found of a queue."""

    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    oldest: Millis | None = None
    unserved: list[Unserved] = []
    ready: set[str] = field(default_factory=set[str])
    """The workflows of which runs are ready."""


_Rows = msgspec.json.Decoder(list[Row])


def read_rows(rows: str | None) -> list[Row]:
    """Rows from a JSON list."""
    return [] if rows is None else _Rows.decode(rows)


def compose(
    rows: Iterable[Row], records: Iterable[LimitRecord], left: Mapping[Scope, Budget], now: Millis
) -> list[QueueReport]:
    """Reports on each queue that has lanes, or for which something is set, by name. `rows` say what is in each lane,
    by kind. A lane is there while it has runs; on SQLite and PostgreSQL it stays when these are gone."""
    queues: defaultdict[str, _Queue] = defaultdict(_Queue)
    for row in rows:
        _add(queues[row.queue], row)
    stored = {record.scope: record for record in records}
    names = {*queues, *(scope.name for scope in stored if scope.kind is ScopeKind.QUEUE)}
    return [_report(name, queues[name], stored, left, now) for name in sorted(names)]


def _add(queue: _Queue, row: Row) -> None:
    if row.what is None or row.runs is None:
        return
    what = row.what
    if what == "unserved":
        queue.unserved.append(Unserved(row.workflow, row.version, row.runs))
        if not row.manned:
            what = "ready"
    elif what == "ready":
        queue.ready.add(row.workflow)
    queue.counts[what] += row.runs
    if what == "ready" and row.oldest is not None:
        queue.oldest = row.oldest if queue.oldest is None else min(row.oldest, queue.oldest)


def _report(
    queue: str, found: _Queue, stored: Mapping[Scope, LimitRecord], left: Mapping[Scope, Budget], now: Millis
) -> QueueReport:
    counts = found.counts
    kept = {keeps(scopes_of(queue, workflow), left, now) for workflow in found.ready}
    own, whole = stored.get(Scope(ScopeKind.QUEUE, queue)), stored.get(Scope(ScopeKind.NAMESPACE))
    return QueueReport(
        queue=queue,
        ready=counts["ready"],
        oldest_ready_at=found.oldest,
        running=counts["running"],
        scheduled=counts["scheduled"],
        waiting=counts["waiting"],
        held=[HeldCount(reason, counts[reason]) for reason in _HELD if counts[reason]],
        kept=sorted(reason for reason in kept if reason is not None),
        unserved=found.unserved,
        paused=any(record is not None and record.paused for record in (own, whole)),
        limits=own.limits if own is not None else Limits(),
        ended_last_minute=counts["ended"],
    )
