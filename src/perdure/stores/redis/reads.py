"""What clients read: each a call or two of a script, whose reply is decoded straight into the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import msgspec

from perdure.errors import StoreError
from perdure.model import Arrived, Checkpoint, Count, Ended, Millis, RunRecord, State, WorkerRecord
from perdure.stores.exchange import PAGE
from perdure.stores.redis.reasons import Shown, explained
from perdure.stores.redis.session import Session
from perdure.stores.shared.pages import all_ended, all_of

T = TypeVar("T", Checkpoint, Arrived)

_AHEAD = 1000
_CHUNK = 500
"""The most runs that one call looks at: it bounds how long a server is kept busy by it."""
_PART = 250
"""The most checkpoints, or signals, that one call brings."""
_STATES = frozenset(State)


class _Ended(msgspec.Struct):
    id: str
    state: State
    body: str | None = None


_Number = msgspec.msgpack.Decoder(int)
_Shown = msgspec.msgpack.Decoder(Shown)
_Ends = msgspec.msgpack.Decoder(tuple[list[_Ended], int])
_Ids = msgspec.msgpack.Decoder(list[str])
_Checkpoints = msgspec.msgpack.Decoder(tuple[list[Checkpoint], bool])
_Signals = msgspec.msgpack.Decoder(tuple[list[Arrived], bool])
_Counts = msgspec.msgpack.Decoder(list[tuple[str, str, str, int]])
_Workers = msgspec.msgpack.Decoder(list[WorkerRecord])


_SPENT = re.compile(rb"cmdstat_fcall:calls=\d+,usec=(\d+)")


async def now(db: Session) -> Millis:
    """The store's time."""
    return await db.call("now", reads=_Number)


async def load_run(db: Session, run_id: str) -> RunRecord | None:
    """The run of an id, or None."""
    return next(iter(explained(await db.call("load", {"run_id": run_id}, reads=_Shown))), None)


async def ended(db: Session, run_ids: Sequence[str]) -> list[Ended]:
    """The outcomes of those of the runs that have ended."""
    return await all_ended(partial(first_ended, db), run_ids)


async def first_ended(db: Session, run_ids: Sequence[str]) -> tuple[list[Ended], int]:
    """A page of them, and at how many of the runs it has looked."""
    found, looked = await db.call("ended", run_ids[:PAGE], reads=_Ends)
    return [Ended(each.id, each.state, each.body) for each in found], looked


async def missing(db: Session, run_ids: Sequence[str]) -> list[str]:
    """Those of the ids that no run has."""
    found: list[str] = []
    for first in range(0, len(run_ids), _CHUNK):
        found += await db.call("missing", run_ids[first : first + _CHUNK], reads=_Ids)
    return found


async def history(db: Session, run_id: str, after: int, limit: int) -> list[Checkpoint]:
    """A page of checkpoints, in order of position."""
    return await _page(db, "history", _Checkpoints, run_id, after, limit)


async def find(db: Session, run_id: str, key: str) -> Checkpoint | None:
    """One checkpoint, or None."""
    found, _ = await db.call("history", {"run_id": run_id, "key": key}, reads=_Checkpoints)
    return next(iter(found), None)


async def signals(db: Session, run_id: str, after: int, limit: int) -> list[Arrived]:
    """A page of the signals that wait at a run."""
    return await _page(db, "signals", _Signals, run_id, after, limit)


async def _page(
    db: Session, script: str, reads: msgspec.msgpack.Decoder[tuple[list[T], bool]], run_id: str, after: int, limit: int
) -> list[T]:
    async def read(after: int, limit: int) -> tuple[list[T], bool]:
        return await db.call(script, {"run_id": run_id, "after": after, "limit": limit}, reads=reads)

    return await all_of(read, after, limit, part=_PART)


async def ahead(db: Session, run_id: str) -> int:
    """How many ready runs of its queue come before a queued run."""
    return await db.call("ahead", {"run_id": run_id, "most": _AHEAD}, reads=_Number)


async def counts(db: Session) -> list[Count]:
    """How many runs of each workflow are in each state, by queue."""
    found: Counter[tuple[str, str, State]] = Counter()
    for queue, workflow, state, runs in await db.call("counts", reads=_Counts):
        if state in _STATES:
            found[queue, workflow, State(state)] += runs
    return [Count(*which, runs) for which, runs in sorted(found.items())]


async def workers(db: Session) -> list[WorkerRecord]:
    """The incarnations whose lease has not ended."""
    return await db.call("workers", reads=_Workers)


async def busy(db: Session) -> float | None:
    """Milliseconds that the server has spent in functions, whoever called them; None when this user may not see it."""
    try:
        said = bytes(await db.redis.run("INFO", "commandstats"))
    except StoreError:
        return None
    return sum(int(found) for found in _SPENT.findall(said)) / 1000
