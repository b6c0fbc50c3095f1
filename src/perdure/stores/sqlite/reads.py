"""What clients read: each a statement or two, whose row is decoded straight into the model."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.model import Arrived, Checkpoint, Count, Ended, RunQuery, RunRecord, State, WorkerRecord
from perdure.stores.exchange import PAGE
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.lists import numbers
from perdure.stores.sqlite.reasons import reasons
from perdure.stores.sqlite.sql import encode, load

_SQL = load("read")
_AHEAD = 1000

_Records = msgspec.json.Decoder(list[RunRecord])
_Checkpoints = msgspec.json.Decoder(list[Checkpoint])
_Arrived = msgspec.json.Decoder(list[Arrived])
_Ids = msgspec.json.Decoder(list[str])
_Ended = msgspec.json.Decoder(list[Ended])
_Counts = msgspec.json.Decoder(list[Count])
_Workers = msgspec.json.Decoder(list[WorkerRecord])


def load_run(transaction: Transaction, run_id: str) -> RunRecord | None:
    """The run of an id, or None."""
    numbers = transaction.row(_SQL["one"], {"id": run_id})[0]
    return next(iter(_records(transaction, numbers)), None)


def list_runs(transaction: Transaction, query: RunQuery) -> list[RunRecord]:
    """Lists runs, in the order of enqueueing or against it."""
    records = _records(transaction, numbers(transaction, query))
    return sorted(records, key=lambda record: record.position, reverse=not query.oldest_first)


def ended(transaction: Transaction, run_ids: Sequence[str]) -> list[Ended]:
    """The outcomes of those of the runs that have ended."""
    return [
        ended
        for first in range(0, len(run_ids), PAGE)
        for ended in _Ended.decode(transaction.row(_SQL["ended"], {"ids": encode(run_ids[first : first + PAGE])})[0])
    ]


def missing(transaction: Transaction, run_ids: Sequence[str]) -> list[str]:
    """Those of the ids that no run has."""
    return _Ids.decode(transaction.row(_SQL["missing"], {"ids": encode(run_ids)})[0])


def history(transaction: Transaction, run_id: str, after: int, limit: int) -> list[Checkpoint]:
    """A page of checkpoints, in order of position."""
    return _Checkpoints.decode(transaction.row(_SQL["history"], {"id": run_id, "after": after, "limit": limit})[0])


def find(transaction: Transaction, run_id: str, key: str) -> Checkpoint | None:
    """One checkpoint, or None."""
    return next(iter(_Checkpoints.decode(transaction.row(_SQL["find"], {"id": run_id, "key": key})[0])), None)


def signals(transaction: Transaction, run_id: str, after: int, limit: int) -> list[Arrived]:
    """A page of the signals that wait at a run."""
    return _Arrived.decode(transaction.row(_SQL["signals"], {"id": run_id, "after": after, "limit": limit})[0])


def ahead(transaction: Transaction, run_id: str) -> int:
    """How many ready runs of its queue come before a queued run."""
    return int(transaction.row(_SQL["ahead"], {"id": run_id, "limit": _AHEAD})[0])


def counts(transaction: Transaction) -> list[Count]:
    """How many runs each lane has in each state."""
    return _Counts.decode(transaction.row(_SQL["counts"])[0])


def workers(transaction: Transaction) -> list[WorkerRecord]:
    """The incarnations whose lease has not ended."""
    return _Workers.decode(transaction.row(_SQL["workers"], {"now": transaction.now})[0])


def dead_workers(transaction: Transaction) -> int:
    """How many incarnations have a lease that ended, and wait to be reclaimed."""
    return int(transaction.row(_SQL["dead"], {"now": transaction.now})[0])


def _records(transaction: Transaction, numbers: str) -> list[RunRecord]:
    records = _Records.decode(transaction.row(_SQL["records"], {"runs": numbers})[0])
    # What is kept in the row is a word for statements; what is told is found where the decision lies.
    pending = [record for record in records if record.state is State.QUEUED or record.held is not None]
    if pending:
        found = reasons(transaction, encode([record.position for record in pending]))
        for record in pending:
            record.held = found.get(record.position)
    return records
