"""Batches and labels: what ties runs together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from perdure.errors import InvalidInput, batch_conflict, not_of_batch
from perdure.model import MOST_LABELS, BatchRecord, Start, Started, Wait, WaitFor
from perdure.stores.shared.chunks import in_chunks
from perdure.stores.sqlite.control import find_run
from perdure.stores.sqlite.enqueue import enqueue, known
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

CHUNK = 5000
"""The most runs that one statement makes: it bounds the memory that a large batch takes."""

_SQL = load("batch")
_Batches = msgspec.json.Decoder(list[BatchRecord])


def open_batch(transaction: Transaction, batch: str, starts: Sequence[Start], callback: Start | None) -> list[Started]:
    """Makes all runs of a batch and its callback, which waits for them. A batch that is there is left as it is; raises
    `IdConflict`, and makes nothing, if it is another one, or an id is that of a run which is not of the batch."""
    found = transaction.first(_SQL["open"], {"batch": batch})
    if found is not None:
        items, called_back = found
        if items != len(starts):
            raise batch_conflict(batch, f"with {items} runs, not {len(starts)}")
        if called_back != (callback and callback.id):
            raise batch_conflict(batch, "with another callback" if called_back else "without a callback")
        return _all_the_same(known(transaction, starts))
    begun = {"batch": batch, "items": len(starts), "callback": callback and callback.id, "now": transaction.now}
    transaction.change(_SQL["begin"], begun)
    started: list[Started] = []
    for chunk in in_chunks(starts, CHUNK):
        started += enqueue(transaction, [replace(start, batch=batch) for start in chunk])
    if callback is not None:
        behind = Wait(key=f"batch:{batch}", what=WaitFor.BATCH, target=batch)
        [called_back] = _all_the_same(enqueue(transaction, [callback], behind=behind))
        if called_back.existed:
            raise not_of_batch(callback.id)
        transaction.change(_SQL["complete"], {"batch": batch, "now": transaction.now})
    there = [start.id for start, made in zip(starts, started, strict=True) if made.existed]
    if there and (taken := transaction.first(_SQL["taken"], {"runs": encode(there), "batch": batch})) is not None:
        raise not_of_batch(taken[0])
    return _all_the_same(started)


def _all_the_same(started: list[Started]) -> list[Started]:
    for each in started:
        if not each.same:
            raise not_of_batch(each.id)
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
    number = transaction.row(_SQL["labelled"], params)[0]
    if number > MOST_LABELS:
        raise InvalidInput(f"run {run_id} would have {number} labels, and {MOST_LABELS} is the most; remove some first")
    transaction.change(_SQL["label"], params)
    transaction.change(_SQL["unlabel"], params)
