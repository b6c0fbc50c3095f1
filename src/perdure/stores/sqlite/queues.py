"""The queues at one moment."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import msgspec

from perdure.model import HeldCount, LimitRecord, Limits, Millis, QueueReport, Scope, ScopeKind
from perdure.stores.sqlite import limits
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import load

_SQL = load("queues")
_HELD = ("paused", "group", "group paused", "session", "rate")
_MINUTE = 60_000


class _Row(NamedTuple):
    queue: str
    what: str | None
    runs: int | None
    oldest: Millis | None


_Rows = msgspec.json.Decoder(list[_Row])


def report(transaction: Transaction) -> list[QueueReport]:
    """What is in each queue that was ever used, or for which something is set, by name."""
    rows = _Rows.decode(transaction.row(_SQL["report"], {"since": transaction.now - _MINUTE})[0])
    return compose(rows, limits.limits(transaction))


def compose(rows, records):
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    oldest: dict[str, Millis] = {}
    for row in rows:
        found = counts[row.queue]
        if row.what is not None:
            found[row.what] = row.runs or 0
        if row.oldest is not None:
            oldest[row.queue] = row.oldest
    stored = {record.scope: record for record in records}
    names = {*counts, *(scope.name for scope in stored if scope.kind is ScopeKind.QUEUE)}
    return [_report(name, counts[name], oldest.get(name), stored) for name in sorted(names)]


def _report(queue: str, counts: dict[str, int], oldest: Millis | None, stored: dict[Scope, LimitRecord]) -> QueueReport:
    own, whole = stored.get(Scope(ScopeKind.QUEUE, queue)), stored.get(Scope(ScopeKind.NAMESPACE))
    return QueueReport(
        queue=queue,
        ready=counts.get("ready", 0),
        oldest_ready_at=oldest,
        running=counts.get("running", 0),
        scheduled=counts.get("scheduled", 0),
        waiting=counts.get("waiting", 0),
        held=[HeldCount(reason, counts[reason]) for reason in _HELD if counts.get(reason)],
        paused=any(record is not None and record.paused for record in (own, whole)),
        limits=own.limits if own is not None else Limits(),
        ended_last_minute=counts.get("ended", 0),
    )
