"""Incarnations: how they begin, and what becomes of the runs of one that died."""

from __future__ import annotations

import msgspec

from perdure.blame import Suspect, judge
from perdure.causes import OVERDUE, POISONED, deadline_exceeded, poisoned
from perdure.errors import StoreError
from perdure.model import Millis, State
from perdure.stores.base import Reclaimed, Registration
from perdure.stores.postgres.session import Session, parse
from perdure.stores.postgres.sql import load
from perdure.stores.postgres.url import Location
from perdure.stores.shared.leases import is_late
from perdure.wording import shortened

_Suspects = msgspec.json.Decoder(list[Suspect])


async def register(db: Session, location: Location, worker: Registration) -> int:
    """Begins an incarnation and returns its id. `StoreError` where its user lacks a right: a worker would be told of it
    only by the first call that needs it, and could but try again."""
    rights = await db.rows(load("doctor", location.schema)["rights"], location.schema)
    if missing := [row["what"] for row in rights]:
        raise StoreError(
            f"the store {location.name} can't be worked on by this user, who lacks {shortened(missing, '; ', 3)}:"
            f" GRANT {missing[0]} TO it, and the others, or use the owner of schema {location.schema!r}"
        )
    versions = [
        part for workflow, known in worker.versions.items() for version in known for part in (workflow, version)
    ]
    return int(
        await db.get(
            "register",
            db.clock(),
            worker.name,
            worker.host,
            worker.pid,
            worker.queues,
            worker.workflows,
            versions,
            worker.sessions,
            worker.session_idle,
            worker.concurrency,
            worker.lease,
        )
    )


async def reclaim(db: Session, asked: Millis | None) -> Reclaimed:
    """Takes back the runs of all incarnations whose lease has ended, unless the server came to it late: then it hung,
    and those who live get the time until the next look to renew."""
    dead, runs, now, next_at = await db.call("suspects", db.clock(), None)
    late = is_late(asked, now)
    if late or not dead:
        return Reclaimed(0, next_at, late)
    count = await _take_back(db, dead, runs, now)
    return Reclaimed(count, await db.get("first_end"))


async def bury(db: Session, name: str) -> int:
    """Takes back the runs of the incarnations of a name; returns how many. What a last exchange claims, that the server
    was at still, is found when it is over."""
    taken = 0
    while True:
        named, runs, now, _ = await db.call("suspects", db.clock(), name)
        if not named:
            return taken
        taken += await _take_back(db, named, runs, now, named=True)


async def _take_back(db: Session, workers: list[int], runs: str | None, now: Millis, *, named: bool = False) -> int:
    """Takes back what incarnations own. The runs are judged between two calls: the second one takes back what is as it
    was in the first."""
    suspects = parse(_Suspects, runs)
    verdicts = judge(suspects, now)
    tokens = {suspect.ref: suspect.token for suspect in suspects}
    return int(
        await db.get(
            "take_back",
            db.clock(),
            named,
            workers,
            [verdict.ref for verdict in verdicts],
            [tokens[verdict.ref] for verdict in verdicts],
            [verdict.state for verdict in verdicts],
            [verdict.crashes for verdict in verdicts],
            [verdict.wake_at for verdict in verdicts],
            [poisoned(verdict.crashes) if verdict.state is State.FAILED else None for verdict in verdicts],
            POISONED,
            [deadline_exceeded(), OVERDUE],
        )
    )


async def retire(db: Session, worker: int) -> None:
    """Ends an incarnation in good order: what it owns is queued again and not counted."""
    await db.get("retire", db.clock(), worker, [deadline_exceeded(), OVERDUE])
