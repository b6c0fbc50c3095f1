"""Unique keys as the plain model has them: who holds one, found by looking at all runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

from perdure.model import Millis, OnConflict, RunRecord, Start, Unique


class Keyed(Protocol):
    """A run of the model."""

    shown: RunRecord
    start: Start


R = TypeVar("R", bound=Keyed)


def holder(runs: Collection[R], wanted: Start, now: Millis) -> R | None:
    """The run that a start is led to by its key."""
    unique = wanted.unique
    if unique is None:
        return None
    same = [run for run in runs if run.start.unique is not None and _key(run.start) == _key(wanted)]
    live = [run for run in same if holds(run)]
    assert len(live) <= 1, f"more than one live run has key {unique.key}"
    recent = [run for run in same if run.shown.created_at > now - unique.period]
    return next(reversed(live or recent * (unique.on_conflict == OnConflict.THROTTLE)), None)


def holds(run: Keyed) -> bool:
    """Whether it has its key: while it lives, or, debounced, until it begins."""
    debounced = run.start.unique is not None and run.start.unique.on_conflict == OnConflict.DEBOUNCE
    return not run.shown.state.final and not (debounced and run.shown.started_at is not None)


def taken(runs: Collection[R], ended: R) -> bool:
    """Whether a run that ended can't be retried, because another one has the key that it would hold again."""
    unique = ended.start.unique
    if unique is None or (unique.on_conflict == OnConflict.DEBOUNCE and ended.shown.started_at is not None):
        return False
    plain = Start("", ended.start.workflow, "", "", unique=Unique(unique.key))
    return holder(runs, plain, 0) is not None


def replaces(wanted: Start, run: Keyed) -> bool:
    """Whether a start gives the run that it is led to its input and due time."""
    assert wanted.unique is not None
    modes = (OnConflict.REPLACE, OnConflict.DEBOUNCE)
    return wanted.unique.on_conflict in modes and run.shown.started_at is None


def due(wanted: Start, now: Millis) -> Millis:
    """When a start is due."""
    if wanted.unique is not None and wanted.unique.on_conflict == OnConflict.DEBOUNCE:
        return now + wanted.unique.period
    return wanted.at if wanted.at is not None else now + (wanted.delay or 0)


def _key(start: Start) -> tuple[str, str]:
    return start.workflow, start.unique.key if start.unique else ""
