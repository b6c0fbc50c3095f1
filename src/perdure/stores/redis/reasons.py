"""Why runs are kept from running: told with them, from what decides at that moment."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perdure.model import Millis, RunRecord
from perdure.stores.redis.budgets import Row, left_of
from perdure.stores.redis.parking import waits_in
from perdure.stores.shared.reasons import Facts, Pause, by_scope, explain


class Why(Struct):
    """What decides about those of some runs that are queued or held."""

    now: Millis
    facts: list[Facts] = []
    holders: list[Facts] = []
    pauses: list[Pause] = []
    budgets: list[Row] = []
    running: list[tuple[str, str, int]] = []


class Shown(Struct):
    """Runs, as scripts tell of them."""

    runs: list[RunRecord] = []
    waits: list[str | Literal[False]] = []
    """What each of them waits for, as it is kept."""
    why: Why | None = None


def explained(shown: Shown) -> list[RunRecord]:
    """Runs with what keeps them from running. A free slot or a worker may lack besides."""
    for record, waits in zip(shown.runs, shown.waits, strict=True):
        record.waits = waits_in(waits) if waits else []
    why = shown.why
    if why is not None:
        left = left_of(why.budgets, why.running)
        found = explain(why.facts, why.holders, by_scope(why.pauses), left, why.now)
        for record in shown.runs:
            record.held = found.get(record.position)
    return shown.runs
