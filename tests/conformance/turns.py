"""What keeps queued runs from running, as the model of the suite has it: groups, limits, rates, pauses, sessions.

Like the rest of the model it takes no care of speed: everything is counted from the runs, whenever it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from conformance.rates import Rates
from perdure.clock import moment
from perdure.model import Limits, Millis, RunRecord, Scope, ScopeKind, Start, State


class Member(Protocol):
    """A run, as far as it matters here."""

    shown: RunRecord
    start: Start
    slot: int | None
    """In its group: 0 takes no part, 1 has a slot, 2 is in the line; None without a group."""
    put_off: bool
    """Whether it is scheduled for the time at which the rate of its group lets it begin: it keeps its slot."""

    @property
    def rank(self) -> tuple[int, int]: ...


@dataclass
class Session:
    owner: int | None = None
    idle: Millis = 0
    idle_until: Millis | None = None


@dataclass
class Set:
    """What is set for a scope."""

    limits: Limits = field(default_factory=Limits)
    paused: bool = False


class Turns:
    def __init__(self, runs: Mapping[str, Member]) -> None:
        self._runs = runs
        self.asked: dict[tuple[str, str], int] = {}
        self.sessions: dict[tuple[str, str], Session] = {}
        self.scopes: dict[Scope, Set] = {}
        self.rates = Rates()

    # --- groups

    def ask(self, start: Start) -> int | None:
        """A run was made. The first one of a group says how many of it may run; returns what holds where another one
        says otherwise."""
        if not start.group:
            return None
        key = start.queue, start.group
        asked = self.asked.setdefault(key, start.group_limit)
        return None if start.group_limit in (asked, self.most(key)) else self.most(key)

    def moved(self, run: Member) -> None:
        """The state of a run has changed."""
        if run.slot is not None and run.shown.state != State.RUNNING:
            key = _group(run)
            if run.shown.state == State.QUEUED:
                if run.slot == 0:
                    self._join(run, key)
                elif run.slot == 1 and len(self.holders(key)) > self.most(key):
                    self._change(key, paused=self.group_set(key).paused)
            elif run.slot > 0 and (run.shown.state.final or (not run.put_off and not self._keeps(run))):
                held = run.slot == 1
                run.slot = 0
                if held:
                    self._admit(key)
        self._look_at_session(run)

    def _keeps(self, run: Member) -> bool:
        """Whether it keeps its slot while it waits."""
        return run.start.group_keep and run.slot == 1 and run.shown.started_at is not None

    def _join(self, run: Member, key: tuple[str, str]) -> None:
        run.slot = 2
        if not self.group_set(key).paused and len(self.holders(key)) < self.most(key):
            run.slot = 1
            return
        worst = max(self._removable(key), key=lambda each: each.rank, default=None)
        if worst is not None and not self.group_set(key).paused and worst.rank > run.rank:
            self._send_back(worst)
            self._admit(key)

    def _admit(self, key: tuple[str, str]) -> None:
        while not self.group_set(key).paused and len(self.holders(key)) < self.most(key):
            line = self.members(key, 2)
            if not line:
                return
            min(line, key=lambda each: each.rank).slot = 1

    def _change(self, key: tuple[str, str], *, paused: bool) -> None:
        removable = sorted(self._removable(key), key=lambda each: each.rank, reverse=True)
        for run in removable if paused else removable[: max(0, len(self.holders(key)) - self.most(key))]:
            self._send_back(run)
        self._admit(key)

    def _send_back(self, run: Member) -> None:
        """Into the line."""
        run.slot = 2
        if run.put_off:
            self.let_in(run)

    def _removable(self, key: tuple[str, str]) -> list[Member]:
        queued = [run for run in self.holders(key) if run.shown.state == State.QUEUED or run.put_off]
        return [run for run in queued if run.shown.started_at is None or not run.start.group_keep]

    def over(self, run: Member) -> bool:
        """Whether a queued run that has a slot has to wait: its group has more of them than its limit, and others come
        before it."""
        key = _group(run)
        if run.slot != 1:
            return False
        queued = [each for each in self.holders(key) if each.shown.state == State.QUEUED]
        first = sorted(queued, key=lambda each: each.rank)
        return run not in first[: max(0, self.most(key) - len(self.running(key)))]

    def running(self, key: tuple[str, str]) -> list[Member]:
        return [run for run in self.holders(key) if run.shown.state == State.RUNNING]

    def members(self, key: tuple[str, str], slot: int) -> list[Member]:
        return [run for run in self._runs.values() if run.slot == slot and _group(run) == key]

    def holders(self, key: tuple[str, str]) -> list[Member]:
        return self.members(key, 1)

    def most(self, key: tuple[str, str]) -> int:
        return self.group_set(key).limits.running or self.asked[key]

    def group_set(self, key: tuple[str, str]) -> Set:
        return self.scopes.get(Scope(ScopeKind.GROUP, key[1]), Set())

    # --- limits and pauses

    def set(self, scope: Scope, limits: Limits, paused: bool) -> None:
        before, now = self.scopes.get(scope, Set()), Set(limits, paused)
        self.scopes[scope] = now
        other_rate = self.rates.set(scope, limits.rate)
        if scope.kind == ScopeKind.GROUP and now != before:
            for key in self.asked:
                if key[1] == scope.name:
                    self._change(key, paused=paused)
            if other_rate:
                for run in self._runs.values():
                    if run.put_off and run.start.group == scope.name:
                        self.let_in(run)

    def let_in(self, run: Member) -> None:
        """It waits no more for the rate of its group."""
        run.shown.state, run.shown.wake_at, run.put_off = State.QUEUED, None, False
        self.moved(run)

    def group_opens_at(self, run: Member, now: Millis) -> Millis:
        """When the rate of its group lets a run begin."""
        return self.rates.opens_at(Scope(ScopeKind.GROUP, run.start.group), now)

    def put_off_times(self, run: Member, now: Millis) -> set[Millis]:
        """Until when a store may put off a run for the rate of its group: behind any number of those that are there."""
        group = run.start.group
        others = sum(each.start.group == group and not each.shown.state.final for each in self._runs.values()) - 1
        times = {self.rates.opens_at(Scope(ScopeKind.GROUP, group), now, behind) for behind in range(others + 1)}
        return times - {now} if run.slot == 1 else set()

    def lane_opens_at(self, run: Member, now: Millis) -> Millis:
        """When the rates of its lane let a run begin."""
        return max(self.rates.opens_at(scope, now) for scope in _scopes(run))

    def used(self, scope: Scope) -> int:
        if scope.kind == ScopeKind.GROUP:
            return sum(len(self.holders(key)) for key in self.asked if key[1] == scope.name)
        running = [run for run in self._runs.values() if run.shown.state == State.RUNNING]
        return sum(scope in _scopes(run) for run in running)

    def full(self, run: Member) -> Scope | None:
        """The scope that is at its limit and keeps the run."""
        for scope in _scopes(run):
            limit = self.scopes.get(scope, Set()).limits.running
            if limit is not None and self.used(scope) >= limit:
                return scope
        return None

    def paused(self, run: Member) -> Scope | None:
        return next((scope for scope in _all_scopes(run) if self.scopes.get(scope, Set()).paused), None)

    # --- sessions

    def session(self, run: Member) -> Session | None:
        return self.sessions.setdefault((run.start.queue, run.start.session), Session()) if run.start.session else None

    def own(self, run: Member, worker: int, idle: Millis, now: Millis) -> None:
        """The run was claimed."""
        self.rates.begin(_all_scopes(run), now)
        session = self.session(run)
        if session is not None and session.owner is None:
            session.owner, session.idle, session.idle_until = worker, idle, None

    def leave(self, worker: int) -> None:
        for session in self.sessions.values():
            if session.owner == worker:
                session.owner = session.idle_until = None

    def rooms(self, worker: int, most: int) -> int:
        return most - sum(session.owner == worker for session in self.sessions.values())

    def keeps_until(self, worker: int) -> list[Millis]:
        mine = [session.idle_until for session in self.sessions.values() if session.owner == worker]
        return [until for until in mine if until]

    def any_idle(self, now: Millis) -> bool:
        return any(each.idle_until is not None and each.idle_until <= now for each in self.sessions.values())

    def rest(self, now: Millis) -> None:
        for session in self.sessions.values():
            if session.idle_until == 0:
                session.idle_until = now + session.idle

    def let_go(self, now: Millis) -> None:
        for session in self.sessions.values():
            if session.idle_until is not None and session.idle_until <= now:
                session.owner = session.idle_until = None

    def _look_at_session(self, run: Member) -> None:
        session = self.session(run)
        if session is None or session.owner is None:
            return
        mates = [each for each in self._runs.values() if self.session(each) is session]
        busy = any(each.shown.state in (State.QUEUED, State.RUNNING) for each in mates)
        session.idle_until = None if busy else session.idle_until or 0

    # --- what follows from all of it

    def held(self, run: Member) -> bool:
        """Whether a pause or its group keeps a queued run."""
        return run.slot == 2 or self.over(run) or self.paused(run) is not None

    def claimable(self, run: Member, worker: int, sessions: int) -> bool:
        """Whether nothing but a rate keeps a queued run of a lane of the worker from it."""
        if self.held(run) or self.full(run):
            return False
        session = self.session(run)
        if session is None or session.owner == worker:
            return True
        return session.owner is None and self.rooms(worker, sessions) > 0

    def reason(self, run: Member, names: Mapping[int, str], now: Millis) -> str | None:
        """How the reason begins that a store must tell."""
        if run.shown.state == State.QUEUED:
            key = _group(run)
            if run.slot is not None and self.group_set(key).paused:
                return f"group {run.start.group} is paused by ada since "
            if run.slot == 2 or self.over(run):
                first = min(self.holders(key), key=lambda each: each.rank)
                used = f"{len(self.holders(key))} of {self.most(key)}"
                return f"group {run.start.group} is full ({used}: run {first.shown.id}"
        elif not run.put_off:
            return None
        for scope in _scopes(run):
            if self.scopes.get(scope, Set()).paused:
                return f"{_name(scope)} is paused by ada since "
        if scope := self.full(run):
            return f"{_name(scope)} is at its limit of {self.scopes[scope].limits.running}"
        for scope in _all_scopes(run):
            if (opens := self.rates.opens_at(scope, now)) > now:
                return f"{_name(scope)} may begin its next run at {moment(opens):%Y-%m-%d %H:%M:%S} UTC ("
        session = self.session(run)
        if session is not None and session.owner is not None:
            return f"session {run.start.session} belongs to worker {names[session.owner]}"
        return None


def _group(run: Member) -> tuple[str, str]:
    return run.start.queue, run.start.group


def _scopes(run: Member) -> list[Scope]:
    return [
        Scope(ScopeKind.NAMESPACE),
        Scope(ScopeKind.QUEUE, run.shown.queue),
        Scope(ScopeKind.WORKFLOW, run.shown.workflow),
    ]


def _all_scopes(run: Member) -> list[Scope]:
    return [*_scopes(run), *([Scope(ScopeKind.GROUP, run.start.group)] if run.start.group else [])]


def _name(scope: Scope) -> str:
    return f"{scope.kind} {scope.name}" if scope.name else "the whole store"
