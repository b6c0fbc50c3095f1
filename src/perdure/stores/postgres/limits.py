"""Limits, rates and pauses of scopes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perdure.errors import InvalidInput
from perdure.model import LimitRecord, Limits, Millis, Rate, Revision, Scope, ScopeKind
from perdure.stores.postgres.session import Session, encode, parse


class _LimitRow(NamedTuple):
    kind: ScopeKind
    name: str
    running: int | None
    number: int | None
    period: Millis | None
    burst: int | None
    paused: bool
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


async def set_limits(db: Session, scope: Scope, limits: Limits, who: str, *, declared: bool) -> LimitRecord:
    """Sets what holds for a scope from now on, as a revision if it differs; returns what holds."""
    _check(scope, limits)
    rate = limits.rate and {"count": limits.rate.count, "period": limits.rate.period, "burst": limits.rate.burst}
    wanted = encode({"running": limits.running, "rate": rate})
    text = await db.get("change_scope", db.clock(), scope.kind, scope.name, who, wanted, None, declared)
    return _record(scope, text)


async def pause(db: Session, scope: Scope, who: str, *, paused: bool) -> LimitRecord:
    """Keeps runs of a scope from beginning, or lets them again, as a revision if it differs; returns what holds."""
    _check(scope, Limits())
    text = await db.get("change_scope", db.clock(), scope.kind, scope.name, who, None, paused, False)
    return _record(scope, text)


async def limits(db: Session) -> list[LimitRecord]:
    """What is stored for scopes, with how much of it is used."""
    return _records(await db.get("limits", None, None))


async def revisions(db: Session, scope: Scope | None, limit: int) -> list[Revision]:
    """The changes, latest first."""
    found = await db.decode(_Revisions, "revisions", scope and scope.kind, scope and scope.name, limit)
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
        for row in found
    ]


def _check(scope: Scope, limits: Limits) -> None:
    if (scope.kind is ScopeKind.NAMESPACE) != (scope.name == ""):
        raise InvalidInput("a queue, a workflow or a group is named, the namespace is not")
    if limits.running is not None and limits.running < 1:
        raise InvalidInput(f"a limit of {limits.running} lets nothing run; pause the {scope.kind} if that is meant")
    if limits.rate is not None and min(limits.rate.count, limits.rate.period, limits.rate.burst) < 1:
        raise InvalidInput("the count, the period and the burst of a rate are at least 1")


def _record(scope: Scope, text: str | None) -> LimitRecord:
    nothing = LimitRecord(scope=scope, limits=Limits(), paused=False, revision=0, who="", at=0)
    return next(iter(_records(text)), nothing)


def _records(text: str | None) -> list[LimitRecord]:
    return [
        LimitRecord(
            scope=Scope(row.kind, row.name),
            limits=_limits_of(row.running, row.number, row.period, row.burst),
            paused=row.paused,
            revision=row.revision,
            who=row.who,
            at=row.at,
            running=row.used,
            queues=row.queues,
        )
        for row in parse(_Limits, text)
    ]


def _limits_of(running: int | None, count: int | None, period: int | None, burst: int | None) -> Limits:
    rate = None if count is None or period is None or burst is None else Rate(count, period, burst)
    return Limits(running, rate)
