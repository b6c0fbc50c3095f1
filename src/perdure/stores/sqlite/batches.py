"""Batches and labels: what ties runs together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from perdure.errors import InvalidInput
from perdure.model import BatchRecord, Start, Started, Wait, WaitFor
from perdure.stores.sqlite.control import find_run
from perdure.stores.sqlite.enqueue import enqueue, known
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

CHUNK = 5000
"""The most runs that one statement makes: it bounds the memory that a large batch takes."""

_SQL = load("batch")
_Batches = msgspec.json.Decoder(list[BatchRecord])


def open_batch(transaction: Transaction, batch: str, starts: Sequence[Start], callback: Start | None) -> list[Started]:
    """Makes all runs of a batch and its callback, which waits for them. One that is there is left as it is."""
    if transaction.first(_SQL["open"], {"batch": batch}) is not None:
        return known(transaction, starts)
    transaction.change(_SQL["begin"], {"batch": batch, "callback": callback and callback.id})
    started: list[Started] = []
    for first in range(0, len(starts), CHUNK):
        chunk = [replace(start, batch=batch) for start in starts[first : first + CHUNK]]
        started += enqueue(transaction, chunk)
    if callback is not None:
        enqueue(transaction, [callback], behind=Wait(key=f"batch:{batch}", what=WaitFor.BATCH, target=batch))
        transaction.change(_SQL["complete"], {"batch": batch})
    return started


def load_batch(transaction: Transaction, batch: str) -> BatchRecord | None:
    """How far a batch has come, or None."""
    return next(iter(_Batches.decode(transaction.row(_SQL["batch"], {"batch": batch})[0])), None)


def label(transaction: Transaction, run_id: str, labels: dict[str, str]) -> None:
    """Sets labels of a run; an empty value removes one."""
    if any("\0" in text for pair in labels.items() for text in pair):
        raise InvalidInput(f"a label of run {run_id} has a NUL, which can't be kept")
    run, _ = find_run(transaction, run_id)
    params = {"run": run, "labels": encode(labels)}
    transaction.change(_SQL["label"], params)
    transaction.change(_SQL["unlabel"], params)
