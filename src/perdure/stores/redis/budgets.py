"""What is left of limits and rates, as scripts tell of it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from perdure.budget import Budget
from perdure.model import Millis, Rate, Scope, ScopeKind
from perdure.stores.shared.budgets import make_budget, take


class Row(Struct):
    """What holds for a scope; `debt` is what is used of its rate at the time `at`."""

    kind: ScopeKind
    name: str
    running: int | None = None
    count: int | None = None
    period: int | None = None
    burst: int | None = None
    debt: int = 0
    at: Millis = 0


def left_of(rows: Iterable[Row], running: Iterable[tuple[str, str, int]]) -> dict[Scope, Budget]:
    """What is left in scopes, where so many runs of queues and workflows are running."""
    left = {Scope(row.kind, row.name): _budget(row) for row in rows}
    take(left, running)
    return left


def _budget(row: Row) -> Budget:
    rate = None
    if row.count is not None and row.period is not None and row.burst is not None:
        rate = Rate(row.count, row.period, row.burst)
    return make_budget(row.kind, row.running, rate, row.debt, row.at)
