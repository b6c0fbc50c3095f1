"""Limits, rates and pauses of scopes: each change is a revision, and takes effect in the same transaction."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perdure.errors import InvalidInput
from perdure.model import LimitRecord, Limits, Millis, Rate, Revision, Scope, ScopeKind
from perdure.stores.base import Topic
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("limits")
_SERVE = load("worker")["serve"]


class _Stored(NamedTuple):
    """What is kept for a scope; for one of which nothing is, what holds then."""

    limits: Limits = Limits()
    debt: int = 0
    debt_at: Millis = 0
    chosen: bool = False
    paused: bool = False


class _LimitRow(NamedTuple):
    kind: ScopeKind
    name: str
    running: int | None
    number: int | None
    period: Millis | None
    burst: int | None
    paused: int
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


def set_limits(transaction: Transaction, scope: Scope, limits: Limits, who: str, *, declared: bool) -> LimitRecord:
    """Sets what holds for a scope from now on, as a revision if it differs; returns what holds.

    What a rate has counted stays counted when the rate changes.
    """
    _check(scope, limits)
    stored = _stored(transaction, scope)
    if not (declared and stored.chosen) and (limits != stored.limits or not stored.chosen):
        debt = stored.debt
        if limits.rate is not None and stored.limits.rate is not None:
            debt = -(-stored.debt * limits.rate.period // stored.limits.rate.period)
        changed = _Stored(limits, debt, stored.debt_at, True, stored.paused)
        _revise(transaction, scope, stored, changed, who)
    return _record(transaction, scope)


def pause(transaction: Transaction, scope: Scope, who: str, *, paused: bool) -> LimitRecord:
    """Keeps runs of a scope from beginning, or lets them again, as a revision if it differs; returns what holds."""
    _check(scope, Limits())
    stored = _stored(transaction, scope)
    if stored.paused != paused:
        _revise(transaction, scope, stored, stored._replace(paused=paused), who)
    return _record(transaction, scope)


def limits(transaction: Transaction) -> list[LimitRecord]:
    """What is stored for scopes, with how much of it is used."""
    return _records(transaction, None)


def revisions(transaction: Transaction, scope: Scope | None, limit: int) -> list[Revision]:
    """The changes, latest first."""
    params = {"kind": scope and scope.kind, "name": scope and scope.name, "limit": limit}
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
        for row in _Revisions.decode(transaction.row(_SQL["revisions"], params)[0])
    ]


def limits_of(running: int | None, count: int | None, period: int | None, burst: int | None) -> Limits:
    """Limits as they are kept in a row."""
    rate = None if count is None or period is None or burst is None else Rate(count, period, burst)
    return Limits(running, rate)


def _check(scope: Scope, limits: Limits) -> None:
    if (scope.kind is ScopeKind.NAMESPACE) != (scope.name == ""):
        raise InvalidInput("a queue, a workflow or a group is named, the namespace is not")
    if limits.running is not None and limits.running < 1:
        raise InvalidInput(f"a limit of {limits.running} lets nothing run; pause the {scope.kind} if that is meant")
    if limits.rate is not None and min(limits.rate.count, limits.rate.period, limits.rate.burst) < 1:
        raise InvalidInput("the count, the period and the burst of a rate are at least 1")


def _revise(transaction: Transaction, scope: Scope, old: _Stored, new: _Stored, who: str) -> None:
    named = {"kind": scope.kind, "name": scope.name, "who": who, "now": transaction.now}
    cursor = transaction.connection.execute(
        _SQL["revise"],
        {
            **named,
            "old": encode(old.limits),
            "new": encode(new.limits),
            "was_paused": old.paused,
            "paused": new.paused,
        },
    )
    rate = new.limits.rate
    transaction.change(
        _SQL["put"],
        {
            **named,
            "running": new.limits.running,
            "rate_count": rate and rate.count,
            "rate_period": rate and rate.period,
            "rate_burst": rate and rate.burst,
            "debt": new.debt if rate else 0,
            "debt_at": new.debt_at if rate else 0,
            "chosen": new.chosen,
            "paused": new.paused,
            "revision": cursor.lastrowid,
        },
    )
    if scope.kind is ScopeKind.GROUP:
        group = {"name": scope.name, "running": new.limits.running, "paused": new.paused}
        transaction.change(_SQL["groups"], group)
        if old.limits.rate != rate:
            transaction.change(_SQL["let_in"], {"name": scope.name})
    elif old.paused != new.paused:
        transaction.change(_SQL["pause_lanes"], {})
        if new.paused:
            transaction.change(_SQL["leave_lanes"], {})
        else:
            transaction.change(_SERVE, {"worker": None})
    transaction.tell.add(Topic.WORK)


def _stored(transaction: Transaction, scope: Scope) -> _Stored:
    row = transaction.first(_SQL["scope"], {"kind": scope.kind, "name": scope.name})
    if row is None:
        return _Stored()
    running, count, period, burst, debt, debt_at, chosen, paused, *_ = row
    return _Stored(limits_of(running, count, period, burst), debt, debt_at, bool(chosen), bool(paused))


def _record(transaction: Transaction, scope: Scope) -> LimitRecord:
    nothing = LimitRecord(scope=scope, limits=Limits(), paused=False, revision=0, who="", at=0)
    return next(iter(_records(transaction, scope)), nothing)


def _records(transaction: Transaction, scope: Scope | None) -> list[LimitRecord]:
    params = {"kind": scope and scope.kind, "name": scope and scope.name}
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
        for row in _Limits.decode(transaction.row(_SQL["limits"], params)[0])
    ]
