"""Runs and what they have behind them as plain values, for `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from perdure.clock import moment
from perdure.failures import decode_failure
from perdure.model import Checkpoint, Kind, Millis, Outcome, RunRecord, State, Wait


def plain_run(run: RunRecord, why: str) -> dict[str, Any]:
    """A run with its times as ISO 8601 texts, and its values as the JSON that they are."""
    ended = run.body if run.state is State.SUCCEEDED else None
    failed = run.state in (State.FAILED, State.SCHEDULED, State.QUEUED) and run.body is not None
    return {
        "id": run.id,
        "workflow": run.workflow,
        "queue": run.queue,
        "priority": run.priority,
        "state": run.state,
        "why": why,
        "attempt": run.attempt,
        "crashes": run.crashes,
        "created_at": moment(run.created_at),
        "started_at": _time(run.started_at),
        "finished_at": _time(run.finished_at),
        "wake_at": _time(run.wake_at),
        "deadline": _time(run.deadline),
        "parent": run.parent,
        "group": run.group or None,
        "session": run.session or None,
        "version": run.version or None,
        "unique": run.unique or None,
        "batch": run.batch or None,
        "labels": run.labels,
        "progress": _raw(run.status),
        "cause": run.cause,
        "worker": run.worker,
        "cancelling": run.cancelling,
        "input": msgspec.Raw(run.input.encode()),
        "result": _raw(ended),
        "error": decode_failure(run.body or "null") if failed else None,
        "waits": [_wait(wait) for wait in run.waits],
    }


def plain_checkpoint(kept: Checkpoint, until: Millis) -> dict[str, Any]:
    """A checkpoint as it stood at a time; `value` or `error` is there as it ended, `child` where it stands for another
    run."""
    plain: dict[str, Any] = {
        "key": kept.key,
        "kind": kept.kind,
        "outcome": kept.outcome_by(until),
        "attempts": kept.attempts,
        "started_at": moment(kept.started_at),
        "saved_at": moment(kept.saved_at),
        "at": _time(kept.at),
    }
    if kept.body is None:
        return plain
    if kept.kind is Kind.RESULT:
        return plain | {"ended": _raw(kept.body)}
    if kept.outcome is Outcome.OK:
        return plain | {"child" if kept.kind is Kind.CHILD else "value": _raw(kept.body)}
    return plain | {"error": decode_failure(kept.body)}


def plain_history(run: RunRecord, history: Sequence[Checkpoint], now: Millis) -> list[dict[str, Any]]:
    """Checkpoints of a run in the order in which they were kept."""
    until = now if run.finished_at is None else run.finished_at
    return [plain_checkpoint(kept, until) for kept in history]


def _wait(wait: Wait) -> dict[str, Any]:
    return {"key": wait.key, "for": wait.what, "target": wait.target or None, "at": _time(wait.at)}


def _time(at: Millis | None) -> datetime | None:
    return None if at is None else moment(at)


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
