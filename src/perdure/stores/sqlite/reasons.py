"""Why runs are kept from running, in words: told from what the store decides by, when it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import Struct

from perdure.budget import Budget, Head, scopes_of
from perdure.clock import moment
from perdure.model import Millis, Scope, ScopeKind, State
from perdure.rates import show_rate, show_scope
from perdure.stores.sqlite.claim import budgets
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import load

_SQL = load("reasons")


class _Facts(Struct):
    """What decides about a run."""

    run: int
    state: State
    held: str | None
    queue: str
    workflow: str
    group: str
    most: int
    group_paused: bool
    slots: int
    holder: str | None
    session: str
    owner: str | None
    seats: int


class _Pause(NamedTuple):
    kind: ScopeKind
    name: str
    who: str
    at: Millis


_FactsList = msgspec.json.Decoder(list[_Facts])
_Pauses = msgspec.json.Decoder(list[_Pause])


def reasons(transaction: Transaction, numbers: str) -> dict[int, str]:
    """For those of the runs that something keeps from running: what it is. A free slot or a worker may lack besides."""
    facts = _FactsList.decode(transaction.row(_SQL["facts"], {"runs": numbers})[0])
    if not facts:
        return {}
    heads = [_head(each) for each in facts]
    groups = msgspec.json.encode(sorted({each.group for each in facts if each.group})).decode()
    pauses = {
        Scope(pause.kind, pause.name): pause
        for pause in _Pauses.decode(transaction.row(_SQL["pauses"], {"groups": groups})[0])
    }
    left = budgets(transaction, heads)
    found = {each.run: _reason(each, pauses, left, transaction.now) for each in facts}
    return {run: reason for run, reason in found.items() if reason is not None}


def _reason(facts: _Facts, pauses: Mapping[Scope, _Pause], left: Mapping[Scope, Budget], now: Millis) -> str | None:
    group = Scope(ScopeKind.GROUP, facts.group)
    if facts.held in ("group", "paused") and facts.group_paused:
        return _paused(group, pauses.get(group))
    if facts.held == "group":
        full = f"group {facts.group} is full ({facts.slots} of {facts.most}: run {facts.holder})"
        late = _late(left.get(group), now)
        return full if late is None else f"{full}, and {late}"
    lane = scopes_of(facts.queue, facts.workflow)
    for scope in lane:
        if scope in pauses:
            return _paused(scope, pauses[scope])
    if facts.held == "session":
        return f"its session waits: {facts.seats} runs of session {facts.session} come first"
    return _within(facts, [*lane, group], left, now)


def _within(facts: _Facts, scopes: list[Scope], left: Mapping[Scope, Budget], now: Millis) -> str | None:
    found = [(scope, left[scope]) for scope in scopes if scope in left]
    for scope, budget in found:
        if budget.left is not None and budget.left <= 0:
            return f"{show_scope(scope)} is at its limit of {budget.most}"
    for scope, budget in found:
        if (late := _late(budget, now)) is not None:
            return f"{show_scope(scope)} {late}"
    if facts.owner is not None:
        return f"session {facts.session} belongs to worker {facts.owner}"
    return None


def _late(budget: Budget | None, now: Millis) -> str | None:
    if budget is None or budget.meter is None or (opens := budget.meter.opens_at(now)) <= now:
        return None
    return f"may begin its next run at {_time(opens)} ({show_rate(budget.meter.rate)})"


def _head(facts: _Facts) -> Head:
    return Head(facts.run, 0, 0, facts.queue, facts.workflow, facts.group, None)


def _paused(scope: Scope, pause: _Pause | None) -> str:
    by = "" if pause is None else f" by {pause.who} since {_time(pause.at)}"
    return f"{show_scope(scope)} is paused{by}"


def _time(at: Millis) -> str:
    return moment(at).strftime("%Y-%m-%d %H:%M:%S UTC")
