"""Why runs are kept from running, in words: told from what a store decides by, when it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from perdure.budget import Budget, Head, scopes_of
from perdure.clock import moment
from perdure.model import Millis, Scope, ScopeKind, State
from perdure.rates import show_rate, show_scope


class Facts(Struct, kw_only=True):
    """What decides about a run."""

    run: int
    state: State
    held: str | None = None
    queue: str
    workflow: str
    version: str = ""
    served: bool
    group: str = ""
    most: int = 0
    group_paused: bool = False
    slots: int = 0
    holder: tuple[int, str] | None = None
    """The first of the runs that have a slot of its group: number and id."""
    session: str = ""
    owner: str | None = None
    seats: int = 0


class Pause(NamedTuple):
    """A scope that is paused, by whom and since when."""

    kind: ScopeKind
    name: str
    who: str
    at: Millis


_FactsList = msgspec.json.Decoder(list[Facts])
_Pauses = msgspec.json.Decoder(list[Pause])


def read_facts(rows: str | None) -> list[Facts]:
    """Facts of runs, from a JSON list."""
    return [] if rows is None else _FactsList.decode(rows)


def read_pauses(rows: str | None) -> dict[Scope, Pause]:
    """Pauses by their scopes, from a JSON list."""
    return {} if rows is None else by_scope(_Pauses.decode(rows))


def by_scope(pauses: Iterable[Pause]) -> dict[Scope, Pause]:
    """Pauses by their scopes."""
    return {Scope(pause.kind, pause.name): pause for pause in pauses}


def holders_of(facts: Iterable[Facts]) -> list[int]:
    """Those who have the slots that some of the runs wait for: a run that waits for a slot is kept by what keeps the
    one that has it."""
    return sorted({each.holder[0] for each in facts if each.held == "group" and each.holder is not None})


def heads_of(facts: Iterable[Facts]) -> list[Head]:
    """The runs, as far as budgets matter."""
    return [Head(each.run, 0, 0, each.queue, each.workflow, each.group, None) for each in facts]


def explain(
    facts: Sequence[Facts],
    holders: Sequence[Facts],
    pauses: Mapping[Scope, Pause],
    left: Mapping[Scope, Budget],
    now: Millis,
) -> dict[int, str]:
    """For those of the runs that something keeps from running: what it is. A free slot or a worker may lack besides."""
    blocked = {each.run: _reason(each, pauses, left, now) or _unserved(each) for each in holders}
    found = {each.run: _reason(each, pauses, left, now, blocked) for each in facts}
    return {run: reason for run, reason in found.items() if reason is not None}


def _reason(
    facts: Facts,
    pauses: Mapping[Scope, Pause],
    left: Mapping[Scope, Budget],
    now: Millis,
    blocked: Mapping[int, str | None] | None = None,
) -> str | None:
    """What keeps a run; `blocked` has what keeps those that it may have to wait for."""
    group = Scope(ScopeKind.GROUP, facts.group)
    if facts.held in ("group", "paused") and facts.group_paused:
        return _paused(group, pauses.get(group))
    if facts.held == "group":
        return _full(facts, blocked or {}, _late(left.get(group), now))
    lane = scopes_of(facts.queue, facts.workflow)
    for scope in lane:
        if scope in pauses:
            return _paused(scope, pauses[scope])
    if facts.held == "session":
        return f"its session waits: {facts.seats} runs of session {facts.session} come first"
    kept = keeps([*lane, group], left, now)
    if kept is None and facts.owner is not None:
        return f"session {facts.session} belongs to worker {facts.owner}"
    return kept


def _full(facts: Facts, blocked: Mapping[int, str | None], late: str | None) -> str:
    number, run_id = facts.holder or (0, "")
    why = blocked.get(number)
    holder = f": run {run_id}" if run_id else ""
    if why is not None:
        holder += f", which does not run: {why}"
    full = f"group {facts.group} is full ({facts.slots} of {facts.most}{holder})"
    # What keeps the holder comes before the rate, or is the rate.
    return full if why is not None or late is None else f"{full}, and {late}"


def _unserved(facts: Facts) -> str | None:
    if facts.served:
        return None
    version = f"version {facts.version} of " if facts.version else ""
    return f"no live worker serves {version}workflow {facts.workflow} on queue {facts.queue}"


def keeps(scopes: Iterable[Scope], left: Mapping[Scope, Budget], now: Millis) -> str | None:
    """Which limit or rate of the scopes keeps a run from beginning now; None when there is room in all of them."""
    found = [(scope, left[scope]) for scope in scopes if scope in left]
    for scope, budget in found:
        if budget.left is not None and budget.left <= 0:
            return f"{show_scope(scope)} is at its limit of {budget.most}"
    for scope, budget in found:
        if (late := _late(budget, now)) is not None:
            return f"{show_scope(scope)} {late}"
    return None


def _late(budget: Budget | None, now: Millis) -> str | None:
    if budget is None or budget.meter is None or (opens := budget.meter.opens_at(now)) <= now:
        return None
    return f"may begin its next run at {show_time(opens)} ({show_rate(budget.meter.rate)})"


def _paused(scope: Scope, pause: Pause | None) -> str:
    by = "" if pause is None else f" by {pause.who} since {show_time(pause.at)}"
    return f"{show_scope(scope)} is paused{by}"


def show_time(at: Millis) -> str:
    """A time in a sentence."""
    return moment(at).strftime("%Y-%m-%d %H:%M:%S UTC")
