"""What clients read: each a statement or two, whose reply is decoded straight into the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from perdure.model import Arrived, BatchRecord, Checkpoint, Count, Ended, RunQuery, RunRecord, State, WorkerRecord
from perdure.stores.postgres.lists import numbers
from perdure.stores.postgres.reasons import reasons
from perdure.stores.postgres.session import Session, parse
from perdure.stores.shared.pages import all_ended, all_of

T = TypeVar("T", Checkpoint, Arrived)

_AHEAD = 1000

_Records = msgspec.json.Decoder(list[RunRecord])
_Checkpoints = msgspec.json.Decoder(list[Checkpoint])
_Arrived = msgspec.json.Decoder(list[Arrived])
_Ended = msgspec.json.Decoder(list[Ended])
_Counts = msgspec.json.Decoder(list[Count])
_Workers = msgspec.json.Decoder(list[WorkerRecord])
_Batches = msgspec.json.Decoder(list[BatchRecord])


async def load_run(db: Session, run_id: str) -> RunRecord | None:
    """The run of an id, or None."""
    found = [row[0] for row in await db.read("one", run_id)]
    return next(iter(await _records(db, found)), None)


async def list_runs(db: Session, query: RunQuery) -> list[RunRecord]:
    """Lists runs, in the order of enqueueing or against it."""
    records = await _records(db, await numbers(db, query))
    return sorted(records, key=lambda record: record.position, reverse=not query.oldest_first)


async def ended(db: Session, run_ids: Sequence[str]) -> list[Ended]:
    """The outcomes of those of the runs that have ended."""

    async def read(run_ids: Sequence[str]) -> tuple[list[Ended], int]:
        [(found, looked)] = await db.read("ended", list(run_ids))
        return parse(_Ended, found), looked

    return await all_ended(read, run_ids)


async def missing(db: Session, run_ids: Sequence[str]) -> list[str]:
    """Those of the ids that no run has."""
    return [row[0] for row in await db.read("missing", list(run_ids))]


async def history(db: Session, run_id: str, after: int, limit: int) -> list[Checkpoint]:
    """A page of checkpoints, in order of position."""
    return await _page(db, "history", _Checkpoints, run_id, after, limit)


async def find(db: Session, run_id: str, key: str) -> Checkpoint | None:
    """One checkpoint, or None."""
    return next(iter(await db.decode(_Checkpoints, "find", run_id, key)), None)


async def signals(db: Session, run_id: str, after: int, limit: int) -> list[Arrived]:
    """A page of the signals that wait at a run."""
    return await _page(db, "signals", _Arrived, run_id, after, limit)


async def _page(
    db: Session, name: str, reads: msgspec.json.Decoder[list[T]], run_id: str, after: int, limit: int
) -> list[T]:
    async def read(after: int, limit: int) -> tuple[list[T], bool]:
        for page, more in await db.read(name, run_id, after, limit):
            return parse(reads, page), more
        return [], False

    return await all_of(read, after, limit, part=limit)


async def ahead(db: Session, run_id: str) -> int:
    """How many ready runs of its queue come before a queued run."""
    return int((await db.read("ahead", run_id, _AHEAD, db.clock()))[0][0])


async def counts(db: Session) -> list[Count]:
    """How many runs each lane has in each state."""
    return await db.decode(_Counts, "counts")


async def workers(db: Session) -> list[WorkerRecord]:
    """The incarnations whose lease has not ended."""
    return await db.decode(_Workers, "workers", db.clock())


async def batch(db: Session, batch_id: str) -> BatchRecord | None:
    """How far a batch has come, or None."""
    return next(iter(await db.decode(_Batches, "batch", batch_id)), None)


async def _records(db: Session, found: Sequence[int]) -> list[RunRecord]:
    if not found:
        return []
    records = await db.decode(_Records, "records", list(found))
    # What is kept in the row is a word for statements; what is told is found where the decision lies.
    pending = [record for record in records if record.state is State.QUEUED or record.held is not None]
    if pending:
        why = await reasons(db, [record.position for record in pending])
        for record in pending:
            record.held = why.get(record.position)
    return records
