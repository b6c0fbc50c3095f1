"""What may begin within limits and rates: decided here, without a store, for a claim of a store.

A claim reads the first ready runs of the lanes that it serves, and what limits and rates leave for the scopes that
they lie in. `pick` says which of them begin now.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from perdure.model import Millis, Rate, Scope, ScopeKind


class Head(NamedTuple):
    """A ready run, as far as budgets matter."""

    run: int
    priority: int
    place: int
    queue: str
    workflow: str
    group: str
    """Its key, or ""."""
    session: int | None
    """Of a session that nobody owns yet; None when the run is for the worker, or anybody, in any case."""


ASTRAY: Millis = 60_000
"""How far ahead of the store's clock a rate may have counted before it is seen that the clock was wrong then."""


class Meter(Struct):
    """How much of a rate is used: a bucket that holds `burst` runs and runs out by `count` of them in each `period`.

    `debt` is what is in the bucket at the time `at`, in parts of a run: `period` of them are one. In these units each
    millisecond takes `count` out, so that all numbers are whole and nothing is ever rounded in anybody's favour: in any
    window of length t at most `burst + t * count / period` runs begin.
    """

    rate: Rate
    debt: int = 0
    at: Millis = 0
    spent: bool = False
    """Whether a run began since this was read."""

    def opens_at(self, now: Millis, behind: int = 0) -> Millis:
        """When the next run may begin, behind so many that begin as soon as they may; `now` when it may at once."""
        full = (self.rate.burst - 1 - behind) * self.rate.period
        over = self._debt(now) - full
        return now if over <= 0 else max(now, self.at) - (-over // self.rate.count)

    def begin(self, now: Millis) -> None:
        """Counts a run that begins."""
        at = now if self._astray(now) else max(now, self.at)
        self.debt, self.at, self.spent = self._debt(now) + self.rate.period, at, True

    def _debt(self, now: Millis) -> int:
        return 0 if self._astray(now) else max(0, self.debt - max(0, now - self.at) * self.rate.count)

    def _astray(self, now: Millis) -> bool:
        """Whether the clock was far ahead when it counted last, and is right again: nothing of that is left. One that
        was put back a little makes the rate a little slower."""
        return self.at - now > ASTRAY


class Budget(Struct):
    """What a scope allows: how many runs may be running (None: any number), how many more of them now, and how fast
    they may begin."""

    most: int | None = None
    left: int | None = None
    meter: Meter | None = None


Budgets: TypeAlias = Mapping[Scope, Budget]


class Pick(Struct):
    """What `pick` decided."""

    chosen: list[Head] = field(default_factory=list[Head])
    """These begin now, in this order."""
    late: list[Head] = field(default_factory=list[Head])
    """These are first in their lanes, and only the rate of their group keeps them."""
    opens_at: Millis | None = None
    """When the first of those that only a rate of their lane keeps may begin."""


def pick(heads: Iterable[Head], budgets: Budgets, slots: int, rooms: int, now: Millis, after: str = "") -> Pick:
    """Picks up to `slots` runs, as far as all their budgets go: by turns of their queues, beginning behind the queue
    `after`, and of a queue by priority and then by place.

    `rooms` is how many more sessions the worker may own. The budgets are taken from on the way.
    """
    picked = Pick()
    sessions: set[int] = set()

    def may_begin(head: Head) -> bool:
        lane, own = _budgets(head, budgets)
        if any(budget.left is not None and budget.left <= 0 for budget in lane):
            return False
        opens = max((budget.meter.opens_at(now) for budget in lane if budget.meter), default=now)
        if opens > now:
            picked.opens_at = opens if picked.opens_at is None else min(opens, picked.opens_at)
            return False
        if own is not None and own.meter is not None and own.meter.opens_at(now) > now:
            picked.late.append(head)
            return False
        if head.session is not None and head.session not in sessions:
            if len(sessions) >= rooms:
                return False
            sessions.add(head.session)
        return True

    queues = _by_queue(heads, after)
    while queues and len(picked.chosen) < slots:
        queue = queues.popleft()
        # What may not begin now may not later on the way either: budgets only get less.
        head = next(filter(may_begin, queue), None)
        if head is not None:
            picked.chosen.append(head)
            spend([head], budgets, now)
            queues.append(queue)
    return picked


def _by_queue(heads: Iterable[Head], after: str) -> deque[Iterator[Head]]:
    """The runs of each queue in order, the queues by name, those behind `after` first."""
    lines: dict[str, list[Head]] = {}
    for head in sorted(heads, key=_order):
        lines.setdefault(head.queue, []).append(head)
    return deque(iter(lines[queue]) for queue in sorted(lines, key=lambda queue: (queue <= after, queue)))


def put_off(late: Iterable[Head], ahead: Mapping[int, int], budgets: Budgets, now: Millis) -> list[tuple[Head, Millis]]:
    """When those that only the rate of their group keeps may begin: one behind the other, so that they do not all come
    at once to find that one of them may. `ahead` says how many of its group each has before it that were put off
    earlier."""
    times: list[tuple[Head, Millis]] = []
    before: Counter[str] = Counter()
    for head in late:
        _, own = _budgets(head, budgets)
        if own is not None and own.meter is not None:
            times.append((head, own.meter.opens_at(now, ahead[head.run] + before[head.group])))
            before[head.group] += 1
    return times


def spend(heads: Iterable[Head], budgets: Budgets, now: Millis) -> None:
    """Takes runs that begin from their budgets."""
    for head in heads:
        lane, own = _budgets(head, budgets)
        for budget in lane:
            if budget.left is not None:
                budget.left -= 1
        for budget in (*lane, own):
            if budget is not None and budget.meter is not None:
                budget.meter.begin(now)


def scopes_of(queue: str, workflow: str) -> tuple[Scope, Scope, Scope]:
    """The scopes that a lane lies in."""
    return Scope(ScopeKind.NAMESPACE), Scope(ScopeKind.QUEUE, queue), Scope(ScopeKind.WORKFLOW, workflow)


def _budgets(head: Head, budgets: Budgets) -> tuple[list[Budget], Budget | None]:
    lane = [budgets[scope] for scope in scopes_of(head.queue, head.workflow) if scope in budgets]
    return lane, budgets.get(Scope(ScopeKind.GROUP, head.group)) if head.group else None


def _order(head: Head) -> tuple[int, int, int]:
    return head.priority, head.place, head.run
