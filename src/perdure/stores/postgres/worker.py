"""Incarnations: how they begin, and what becomes of the runs of one that died."""

from __future__ import annotations

import msgspec

from perdure.blame import Suspect, judge
from perdure.causes import OVERDUE, POISONED, deadline_exceeded, poisoned
from perdure.errors import StoreError
from perdure.model import State
from perdure.stores.base import Registration
from perdure.stores.postgres.session import Session, parse
from perdure.stores.postgres.sql import load
from perdure.stores.postgres.url import Location
from perdure.stores.shared.leases import Promptness
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


async def reclaim(db: Session, promptness: Promptness) -> int:
    """Takes back the runs of all incarnations whose lease has ended; returns how many. None are when the server
    hung until now: those who live get the time until the next look to renew."""
    if await promptness.hung(db.time()):
        return 0
    return await _take_back(db, None) or 0


async def bury(db: Session, name: str) -> int:
    """Takes back the runs of the incarnations of a name; returns how many. What a last exchange claims, that the server
    was at still, is found when it is over."""
    taken = 0
    while (runs := await _take_back(db, name)) is not None:
        taken += runs
    return taken


async def _take_back(db: Session, name: str | None) -> int | None:
    """Takes back what incarnations own; None when there is none of them.

    The runs are judged between two calls: the second one takes back what is as it was in the first.
    """
    workers, runs = await db.call("suspects", db.clock(), name)
    if not workers:
        return None
    suspects = parse(_Suspects, runs)
    now = await db.time()
    verdicts = judge(suspects, now)
    tokens = {suspect.ref: suspect.token for suspect in suspects}
    return int(
        await db.get(
            "take_back",
            db.clock(),
            name is not None,
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
