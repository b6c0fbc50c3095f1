"""A run's history as rows on a time axis. Pure: what is shown depends on what is given alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, json

from perdure.failures import decode_failure
from perdure.model import Checkpoint, Kind, Millis, Outcome, RunRecord, State

RESULT_SUFFIX = ".result"
"""What the key of a child gets for the checkpoint of its result."""


class Mark(StrEnum):
    """How a row stands."""

    OK = "ok"
    FAILED = "failed"
    OPEN = "open"
    """Begun and not over, or not known to be."""
    WAITED = "waited"
    """Time in which nothing was to do: a sleep that is over."""
    CANCELLED = "cancelled"


class Row(Struct):
    """One thing that a run did or waited for. `end` is None while it goes on."""

    label: str
    kind: Kind
    depth: int
    begin: Millis
    end: Millis | None
    mark: Mark
    attempts: int = 1
    until: Millis | None = None
    """When a sleep ends, a wait gives up, or a step is tried again."""
    note: str = ""
    error: str = ""


class ChildRun(Struct):
    """A child run as far as it was looked up."""

    run: RunRecord
    history: list[Checkpoint] = []
    more: bool = False
    """Whether it has more behind it than `history`."""


class Axis(Struct):
    """The stretch of time that the bars share."""

    begin: Millis
    end: Millis

    def cells(self, begin: Millis, end: Millis, width: int) -> tuple[int, int]:
        """From which cell to which one (not included) a bar goes; at least one."""
        scale = width / max(1, self.end - self.begin)
        first = min(width - 1, max(0, math.floor((begin - self.begin) * scale)))
        last = min(width, max(first + 1, math.ceil((end - self.begin) * scale)))
        return first, last


def rows(
    run: RunRecord, history: Sequence[Checkpoint], children: Mapping[str, ChildRun], now: Millis, *, depth: int = 0
) -> list[Row]:
    """The rows of a history: in order of time, what is nested below what it is nested in.

    `children`: child runs by the key of the checkpoint that started them.
    """
    results = {kept.key.removesuffix(RESULT_SUFFIX): kept for kept in history if kept.kind is Kind.RESULT}
    nested: dict[str, list[Checkpoint]] = {}
    steps = {kept.key for kept in history if kept.kind is Kind.STEP}
    starters = {kept.key for kept in history if kept.kind is Kind.CHILD} | children.keys()
    for kept in history:
        if kept.kind is Kind.RESULT and kept.key.removesuffix(RESULT_SUFFIX) in starters:
            continue  # shown with the child
        nested.setdefault(_enclosing(kept.key, steps), []).append(kept)

    def below(key: str, level: int) -> list[Row]:
        found: list[Row] = []
        for kept in sorted(nested.get(key, ()), key=lambda each: (each.started_at, each.position)):
            row = _row(run, kept, results.get(kept.key), children.get(kept.key), now)
            row.label = kept.key.removeprefix(f"{key}/") if key else kept.key
            row.depth = level
            found.append(row)
            found += below(kept.key, level + 1) if kept.kind is Kind.STEP else []
            if (child := children.get(kept.key)) is not None:
                found += rows(child.run, child.history, {}, now, depth=level + 1)
                if child.more:
                    row.note += ", with more steps"
        return found

    return below("", depth)


def axis(run: RunRecord, shown: Sequence[Row], now: Millis) -> Axis:
    """From the run's first sign of life to its end, or to now."""
    first = run.created_at if run.started_at is None else run.started_at
    last = now if run.finished_at is None else run.finished_at
    begin = min([first, *(row.begin for row in shown)])
    return Axis(begin, max([begin + 1, last, *(row.end or 0 for row in shown)]))


def _row(run: RunRecord, kept: Checkpoint, result: Checkpoint | None, child: ChildRun | None, now: Millis) -> Row:
    over = run.finished_at
    row = Row(kept.key, kept.kind, 0, kept.started_at, kept.saved_at, _MARKS[kept.outcome], kept.attempts)
    if kept.kind is Kind.CHILD:
        return _child(row, kept, result, child, over)
    if kept.kind is Kind.SLEEP:
        # It is never marked as over: the time is all that there is to it.
        row.until = kept.at
        slept = kept.outcome_by(over or now) is Outcome.OK
        row.end = kept.at if slept else over
        row.mark = Mark.WAITED if slept else Mark.CANCELLED if over else Mark.OPEN
        return row
    if kept.outcome is Outcome.OPEN:
        row.until = kept.at
        row.end = over
        row.mark = Mark.CANCELLED if over else Mark.OPEN
        row.note = "" if kept.kind is Kind.STEP else "waiting"
        if kept.body is not None:
            row.error = str(decode_failure(kept.body))
    elif kept.outcome is Outcome.ERROR:
        row.error = _error(kept)
    return row


def _child(row: Row, kept: Checkpoint, result: Checkpoint | None, child: ChildRun | None, over: Millis | None) -> Row:
    row.note = json.decode(kept.body or '""', type=str)
    if child is None:
        seen = None if result is None or result.outcome is Outcome.OPEN else result
        row.end = over if seen is None else seen.saved_at
        row.mark = Mark.OPEN if seen is None else _MARKS[seen.outcome]
        return row
    row.note = child.run.state
    row.end = child.run.finished_at
    row.attempts = child.run.attempt
    row.mark = _STATES.get(child.run.state, Mark.OPEN)
    if child.run.state is State.FAILED:
        row.error = str(decode_failure(child.run.body or "null"))
    return row


def _error(kept: Checkpoint) -> str:
    if kept.kind is not Kind.RESULT:
        return str(decode_failure(kept.body or "null"))
    if kept.body is None:
        return "it did not end in time"
    return "there is no such run" if kept.body == "null" else "it did not succeed"


def _enclosing(key: str, steps: set[str]) -> str:
    """The key of the innermost step around it that is there; "" when there is none."""
    cut = key.rfind("/")
    while cut > 0:
        if key[:cut] in steps:
            return key[:cut]
        cut = key.rfind("/", 0, cut)
    return ""


_MARKS = {Outcome.OK: Mark.OK, Outcome.ERROR: Mark.FAILED, Outcome.OPEN: Mark.OPEN}
_STATES = {State.SUCCEEDED: Mark.OK, State.FAILED: Mark.FAILED, State.CANCELLED: Mark.CANCELLED}
