"""Incarnations: how they begin and end, and what becomes of the runs of one that died."""

from __future__ import annotations

import time

import msgspec

from perdure.blame import Suspect, judge
from perdure.causes import POISONED, poisoned
from perdure.model import Json, Millis, State
from perdure.stores.base import Reclaimed, Registration, Topic
from perdure.stores.shared.leases import is_late
from perdure.stores.sqlite.control import end_held
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.settle import keep_causes, take_numbers
from perdure.stores.sqlite.sql import encode, load

_SQL = load("worker")
_OUTCOMES = load("exchange")["outcomes"]


_LONG = 200
"""Milliseconds from which on a transaction matters to the leases."""

_Suspects = msgspec.json.Decoder(list[Suspect])
_Ids = msgspec.json.Decoder(list[int])


def register(transaction: Transaction, worker: Registration) -> int:
    """Begins an incarnation and returns its id."""
    versions = [(workflow, version) for workflow, known in worker.versions.items() for version in known]
    cursor = transaction.connection.execute(
        _SQL["register"],
        {
            "name": worker.name,
            "host": worker.host,
            "pid": worker.pid,
            "queues": encode(worker.queues),
            "workflows": encode(worker.workflows),
            "versions": encode(versions),
            "sessions": worker.sessions,
            "session_idle": worker.session_idle,
            "concurrency": worker.concurrency,
            "now": transaction.now,
            "lease": worker.lease,
        },
    )
    number = cursor.lastrowid or 0
    transaction.change(_SQL["serve"], {"worker": number})
    return number


def retire(transaction: Transaction, worker: int) -> None:
    """Ends an incarnation in good order: what it owns is queued again and not counted."""
    stopping = _Ids.decode(transaction.row(_SQL["stopping"], {"worker": worker})[0])
    if transaction.change(_SQL["hand_back"], {"worker": worker}):
        transaction.tell |= {Topic.WORK, Topic.STATUS}
    _forget(transaction, encode([worker]))
    if stopping:
        end_held(transaction, stopping)


def reclaim(transaction: Transaction, asked: Millis | None) -> Reclaimed:
    """Takes back the runs of all incarnations whose lease has ended, unless it waited for the lock for long."""
    late = is_late(asked, transaction.now)
    count = 0 if late else _take_back(transaction, transaction.row(_SQL["dead"], {"now": transaction.now})[0])
    return Reclaimed(count, transaction.row(_SQL["first_end"])[0], late)


def bury(transaction: Transaction, name: str) -> int:
    """Takes back the runs of one incarnation, whatever its lease; returns how many."""
    return _take_back(transaction, transaction.row(_SQL["named"], {"name": name})[0])


def lengthen_leases(transaction: Transaction) -> None:
    """Gives back to all who live the time of a long transaction, in which nobody else could write, nor renew."""
    took = round((time.monotonic() - transaction.began) * 1000)
    if took >= _LONG:
        transaction.change(_SQL["lengthen"], {"took": took})


def _take_back(transaction: Transaction, workers: str) -> int:
    if not _Ids.decode(workers):
        return 0
    runs = _Suspects.decode(transaction.row(_SQL["owned"], {"workers": workers})[0])
    if runs:
        verdicts = judge(runs, transaction.now)
        errors: list[tuple[int, Json]] = [(v.ref, poisoned(v.crashes)) for v in verdicts if v.state is State.FAILED]
        if errors:
            transaction.change(_OUTCOMES, {"bodies": encode(errors)})
            keep_causes(transaction, [run for run, _ in errors], POISONED)
            transaction.tell.add(Topic.ENDED)
        finish = take_numbers(transaction, len(verdicts)) if errors else 0
        params = {"runs": encode(verdicts), "now": transaction.now, "finish": finish}
        transaction.change(_SQL["take_back"], params)
        transaction.tell |= {Topic.WORK, Topic.STATUS}
    _forget(transaction, workers)
    stopping = [run.ref for run in runs if run.cancelling]
    if stopping:
        end_held(transaction, stopping)
    return len(runs)


def _forget(transaction: Transaction, workers: str) -> None:
    if transaction.change(_SQL["leave_sessions"], {"workers": workers}):
        transaction.tell.add(Topic.WORK)
    transaction.change(_SQL["forget_lanes"], {"workers": workers})
    transaction.change(_SQL["forget"], {"workers": workers})
