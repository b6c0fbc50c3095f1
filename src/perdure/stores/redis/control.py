"""What clients do to runs that exist: signals, cancelling, retrying."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from perdure.errors import CheckpointNotFound, KeyTaken, PerdureError, RunEnded, RunNotEnded, RunNotFound
from perdure.model import Signal, State
from perdure.stores.redis.chores import finish_left
from perdure.stores.redis.parking import hash_of
from perdure.stores.redis.session import Refused, Session


class _Cancelled(Struct):
    state: State
    left: int | None = None


class _Retried(Struct):
    left: int | None = None


async def deliver(db: Session, signal: Signal) -> None:
    """Keeps a signal and wakes its run."""
    try:
        asked = {**msgspec.structs.asdict(signal), "hash": hash_of(signal.name)}
        await db.call("signal", asked, durable=True)
    except Refused as refused:
        raise explain(refused, signal.run_id) from None


async def cancel(db: Session, run_id: str, reason: str, *, children: bool) -> State:
    """Ends a run and its descendants, or asks for it where one is running; returns the state that the run has now."""
    asked = {
        "run_id": run_id,
        "reason": reason,
        "body": msgspec.json.encode(reason).decode(),
        "children": children,
    }
    try:
        found = msgspec.convert(await db.call("cancel", asked, durable=True), _Cancelled)
    except Refused as refused:
        raise explain(refused, run_id) from None
    await finish_left(db, found.left)
    return found.state


async def retry(db: Session, run_id: str, from_key: str | None) -> None:
    """Queues a run that ended once more, with what succeeded, or what came before a checkpoint outside of it."""
    asked: dict[str, Any] = {"run_id": run_id}
    if from_key is not None:
        asked["from_key"] = from_key
    try:
        found = msgspec.convert(await db.call("retry", asked, durable=True), _Retried)
    except Refused as refused:
        if refused.kind == "no checkpoint":
            raise CheckpointNotFound(f"run {run_id} has no checkpoint {from_key!r}") from None
        raise explain(refused, run_id) from None
    await finish_left(db, found.left)


def explain(refused: Refused, run_id: str) -> PerdureError:
    """The error for what a script refused to do to a run."""
    match refused.kind:
        case "missing":
            return RunNotFound(f"there is no run {run_id!r} in this store")
        case "ended":
            return RunEnded(f"run {run_id} has ended ({refused.said[0]}): it takes no signals any more")
        case "not ended":
            return RunNotEnded(f"run {run_id} is {refused.said[0]}: it can be retried when it has ended")
        case "succeeded":
            return RunNotEnded(f"run {run_id} has succeeded: name the checkpoint from which to do it again")
        case "taken":
            return KeyTaken(
                f"run {run_id} can't be retried: its unique key is another live run's; cancel that one first"
            )
        case kind:
            raise ValueError(f"a script said {kind!r}, which nothing here knows")
