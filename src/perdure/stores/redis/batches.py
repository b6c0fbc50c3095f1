"""Batches and labels: what ties runs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.errors import InvalidInput, PerdureError, batch_conflict, not_of_batch
from perdure.model import MOST_LABELS, BatchRecord, Start, Started
from perdure.stores.redis.control import explain
from perdure.stores.redis.session import Refused, Session, encode
from perdure.stores.redis.starts import Answer, Asked, answers, ask, chunks

_Answers = list[int | Answer]
_NOWHERE: dict[str, str] = {}


async def open_batch(
    db: Session, batch: str, starts: Sequence[Start], callback: Start | None, places: Mapping[str, str] = _NOWHERE
) -> list[Started]:
    """Makes all runs of a batch and its callback, which waits for them. A batch that is there is left as it is; raises
    `IdConflict`, and makes nothing, if it is another one, or an id is that of a run which is not of it. `places` are
    those of runs that are not at the homes of their ids, by id; raises `Refused` for one that has to be looked at.

    A long batch is made in parts: its runs wait until the last one is there, and leave if that never comes. What one
    with unique keys does to runs that have the keys can't be taken back: so all parts are looked at first.
    """
    try:
        if len([*chunks(starts)]) > 1:
            return await _open_in_parts(db, batch, starts, callback, places)
        asked: dict[str, Any] = {"batch": batch, "starts": _ask_all(batch, starts, places)}
        if callback is not None:
            asked["callback"] = ask(callback, place=places.get(callback.id))
        return answers(starts, msgspec.convert(await db.call(_script("open", starts), asked, durable=True), _Answers))
    except Refused as refused:
        if refused.kind == "misplaced":
            raise
        raise _explain(refused, batch, len(starts)) from None


def _script(does: str, starts: Sequence[Start]) -> str:
    """That of a batch which a run opens goes on where memory is full."""
    return f"{does}_child_batch" if any(start.parent for start in starts) else f"{does}_batch"


def _ask_all(batch: str, starts: Sequence[Start], places: Mapping[str, str]) -> list[Asked]:
    return [ask(replace(start, batch=batch), place=places.get(start.id)) for start in starts]


async def _open_in_parts(
    db: Session, batch: str, starts: Sequence[Start], callback: Start | None, places: Mapping[str, str]
) -> list[Started]:
    while True:
        try:
            return await _stage(db, batch, starts, callback, places)
        except Refused as refused:
            if refused.kind not in ("conflict", "dropped"):
                raise
            # What is not open yet goes, be it only what others have left of it.
            while await db.call("drop_batch", {"batch": batch}, durable=True):
                pass
            if refused.kind != "dropped":
                raise


async def _stage(
    db: Session, batch: str, starts: Sequence[Start], callback: Start | None, places: Mapping[str, str]
) -> list[Started]:
    stage = _script("stage", starts)
    asked: dict[str, Any] = {"batch": batch, "items": len(starts)}
    if callback is not None:
        asked["callback"] = callback.id
    # What can't be encoded is found before anything is made.
    packed = [(part, msgspec.Raw(encode(_ask_all(batch, starts[part], places)))) for part in chunks(starts)]
    opened: dict[str, Any] = {"batch": batch}
    if callback is not None:
        opened["callback"] = msgspec.Raw(encode(ask(callback, place=places.get(callback.id))))
    if any(start.unique for start in starts):
        for part, theirs in packed:
            await db.call(stage, {**asked, "first": part.start, "starts": theirs, "looks": True})
    started: list[Started] = []
    for part, theirs in packed:
        asked.update(first=part.start, starts=theirs)
        found = msgspec.convert(await db.call(stage, asked, durable=True), _Answers)
        started += answers(starts[part], found)
    while await db.call("commit_batch", opened, durable=True):
        pass
    return started


def _explain(refused: Refused, batch: str, number: int) -> PerdureError:
    match refused.kind:
        case "items":
            return batch_conflict(batch, f"with {refused.said[0]} runs, not {number}")
        case "callback":
            return batch_conflict(batch, "with another callback" if refused.said[0] else "without a callback")
        case "opening":
            return batch_conflict(batch, "and is being opened with other runs")
        case _:
            return not_of_batch(refused.said[0])


async def tidy(db: Session) -> None:
    """Goes on with long batches that nobody has gone on with for a while: what is open is let in, the rest removed."""
    while await db.call("tidy_batches", durable=True):
        pass


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
