"""What is left of limits and rates, from the rows that a store keeps of scopes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from perdure.budget import Budget, Meter, scopes_of
from perdure.model import Millis, Rate, Scope, ScopeKind


class _Row(NamedTuple):
    kind: ScopeKind
    name: str
    running: int | None
    number: int | None
    period: int | None
    burst: int | None
    debt: int
    at: Millis


_Rows = msgspec.json.Decoder(list[_Row])
_Running = msgspec.json.Decoder(list[tuple[str, str, int]])


def read_budgets(rows: str | None) -> dict[Scope, Budget]:
    """Budgets of scopes (a JSON list of rows) before anything runs."""
    return {} if rows is None else {Scope(row.kind, row.name): _budget(row) for row in _Rows.decode(rows)}


def limited(left: dict[Scope, Budget]) -> bool:
    """Whether it matters how many runs are running."""
    return any(budget.left is not None for budget in left.values())


def take_running(left: dict[Scope, Budget], running: str | None) -> None:
    """Takes what is running (a JSON list of queue, workflow and number) from the budgets."""
    take(left, [] if running is None else _Running.decode(running))


def take(left: dict[Scope, Budget], running: Iterable[tuple[str, str, int]]) -> None:
    """Takes what is running (queue, workflow and number) from the budgets."""
    for queue, workflow, runs in running:
        for scope in scopes_of(queue, workflow):
            budget = left.get(scope)
            if budget is not None and budget.left is not None:
                budget.left -= runs


def make_budget(kind: ScopeKind, running: int | None, rate: Rate | None, debt: int, at: Millis) -> Budget:
    """The budget of a scope before anything runs; `debt` is what is used of its rate at the time `at`."""
    meter = None if rate is None else Meter(rate, debt, at)
    # The limit of a group is kept to before its runs are ready.
    most = None if kind is ScopeKind.GROUP else running
    return Budget(most, most, meter)


def _budget(row: _Row) -> Budget:
    rate = None
    if row.number is not None and row.period is not None and row.burst is not None:
        rate = Rate(row.number, row.period, row.burst)
    return make_budget(row.kind, row.running, rate, row.debt, row.at)
