"""Limits of scopes and their revisions, from the rows that a store keeps of them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perdure.errors import InvalidInput
from perdure.model import LimitRecord, Limits, Millis, Rate, Revision, Scope, ScopeKind


class _LimitRow(NamedTuple):
    kind: ScopeKind
    name: str
    running: int | None
    number: int | None
    period: Millis | None
    burst: int | None
    paused: bool | int
    revision: int
    who: str
    at: Millis
    used: int
    queues: int


class _RevisionRow(NamedTuple):
    number: int
    kind: ScopeKind
    name: str
    who: str
    at: Millis
    old: Limits
    new: Limits
    was_paused: bool
    paused: bool


_Limits = msgspec.json.Decoder(list[_LimitRow])
_Revisions = msgspec.json.Decoder(list[_RevisionRow])


def check_scope(scope: Scope, limits: Limits) -> None:
    """Refuses with `InvalidInput` what can't be set for a scope."""
    if (scope.kind is ScopeKind.NAMESPACE) != (scope.name == ""):
        raise InvalidInput("a queue, a workflow or a group is named, the namespace is not")
    if limits.running is not None and limits.running < 1:
        raise InvalidInput(f"a limit of {limits.running} lets nothing run; pause the {scope.kind} if that is meant")
    if limits.rate is not None and min(limits.rate.count, limits.rate.period, limits.rate.burst) < 1:
        raise InvalidInput("the count, the period and the burst of a rate are at least 1")


def limits_of(running: int | None, count: int | None, period: int | None, burst: int | None) -> Limits:
    """Limits as they are kept in a row."""
    rate = None if count is None or period is None or burst is None else Rate(count, period, burst)
    return Limits(running, rate)


def read_limits(rows: str | None) -> list[LimitRecord]:
    """What is stored for scopes, from a JSON list."""
    return [
        LimitRecord(
            scope=Scope(row.kind, row.name),
            limits=limits_of(row.running, row.number, row.period, row.burst),
            paused=bool(row.paused),
            revision=row.revision,
            who=row.who,
            at=row.at,
            running=row.used,
            queues=max(1, row.queues),
        )
        for row in ([] if rows is None else _Limits.decode(rows))
    ]


def read_limit(scope: Scope, rows: str | None) -> LimitRecord:
    """What is stored for one scope; without a row, that nothing is."""
    nothing = LimitRecord(scope=scope, limits=Limits(), paused=False, revision=0, who="", at=0)
    return next(iter(read_limits(rows)), nothing)


def read_revisions(rows: str | None) -> list[Revision]:
    """Changes of scopes, from a JSON list, in its order."""
    return [
        Revision(
            revision=row.number,
            scope=Scope(row.kind, row.name),
            who=row.who,
            at=row.at,
            old=row.old,
            new=row.new,
            was_paused=row.was_paused,
            paused=row.paused,
        )
        for row in ([] if rows is None else _Revisions.decode(rows))
    ]
