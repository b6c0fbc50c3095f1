"""Limits, rates and pauses of scopes: each change is a revision, and takes effect in the same transaction."""

from __future__ import annotations

from typing import NamedTuple

from perdure.model import LimitRecord, Limits, Millis, Revision, Scope, ScopeKind
from perdure.stores.base import Topic
from perdure.stores.shared.limits import check_scope, limits_of, read_limit, read_limits, read_revisions
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


def set_limits(transaction: Transaction, scope: Scope, limits: Limits, who: str, *, declared: bool) -> LimitRecord:
    """Sets what holds for a scope from now on, as a revision if it differs; returns what holds.

    What a rate has counted stays counted when the rate changes.
    """
    check_scope(scope, limits)
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
    check_scope(scope, Limits())
    stored = _stored(transaction, scope)
    if stored.paused != paused:
        _revise(transaction, scope, stored, stored._replace(paused=paused), who)
    return _record(transaction, scope)


def limits(transaction: Transaction) -> list[LimitRecord]:
    """What is stored for scopes, with how much of it is used."""
    return read_limits(transaction.row(_SQL["limits"], {"kind": None, "name": None})[0])


def revisions(transaction: Transaction, scope: Scope | None, limit: int) -> list[Revision]:
    """The changes, latest first."""
    params = {"kind": scope and scope.kind, "name": scope and scope.name, "limit": limit}
    return read_revisions(transaction.row(_SQL["revisions"], params)[0])


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
    return read_limit(scope, transaction.row(_SQL["limits"], {"kind": scope.kind, "name": scope.name})[0])
