"""Batches and labels: what ties runs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.errors import InvalidInput, batch_conflict, id_conflict
from perdure.model import MOST_LABELS, BatchRecord, Start, Started
from perdure.stores.redis.control import explain
from perdure.stores.redis.session import Refused, Session
from perdure.stores.redis.starts import Answer, answers, ask


async def open_batch(db: Session, batch: str, starts: Sequence[Start], callback: Start | None) -> list[Started]:
    """Makes all runs of a batch and its callback, which waits for them. One that is there is left as it is; raises
    `IdConflict`, and makes nothing, if it is another one.

    It is one script, whatever the number of runs: nothing but that is all or none.
    """
    asked: dict[str, Any] = {"batch": batch, "starts": [ask(replace(start, batch=batch)) for start in starts]}
    if callback is not None:
        asked["callback"] = ask(callback)
    try:
        found = await db.call("open_batch", asked, durable=True)
    except Refused as refused:
        said = refused.said[0]
        if refused.kind == "items":
            raise batch_conflict(batch, f"with {said} runs, not {len(starts)}") from None
        if refused.kind == "callback":
            raise batch_conflict(batch, "with another callback" if said else "without a callback") from None
        raise id_conflict(said, "a run of this batch") from None
    return answers(starts, msgspec.convert(found, list[int | Answer]))


async def load_batch(db: Session, batch: str) -> BatchRecord | None:
    """How far a batch has come, or None."""
    found = await db.call("batch", {"batch": batch})
    return msgspec.convert({"id": batch, **found}, BatchRecord) if found else None


async def label(db: Session, run_id: str, labels: dict[str, str]) -> None:
    """Sets labels of a run; an empty value removes one."""
    if any("\0" in text for pair in labels.items() for text in pair):
        raise InvalidInput(f"a label of run {run_id} has a NUL, which can't be kept")
    try:
        await db.call("label", {"run_id": run_id, "labels": labels, "most": MOST_LABELS}, durable=True)
    except Refused as refused:
        if refused.kind == "labels":
            raise InvalidInput(
                f"run {run_id} would have {refused.said[0]} labels, and {MOST_LABELS} is the most; remove some first"
            ) from None
        raise explain(refused, run_id) from None
