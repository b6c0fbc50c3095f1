"""Incarnations: how they begin and end."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.model import Millis
from perdure.stores.base import Reclaimed, Registration
from perdure.stores.redis import chores
from perdure.stores.redis.batches import tidy
from perdure.stores.redis.session import Session
from perdure.stores.shared.leases import HELD_UP


class Taken(Struct):
    """What came of taking back runs; `numbers` are the incarnations that were forgotten, if they were asked for so, and
    `next_at` is when the first lease ends of those that are left."""

    runs: int
    more: bool
    batches: bool
    chores: bool
    numbers: list[int] = []
    next_at: Millis | None = None
    late: bool = False


class _Registered(Struct):
    number: int
    left: int | None = None


Takings = msgspec.msgpack.Decoder(Taken)
_Left = msgspec.msgpack.Decoder(int)
_Registrations = msgspec.msgpack.Decoder(_Registered)


async def register(db: Session, worker: Registration, number: int | None = None) -> int:
    """Begins an incarnation and returns its id: `number`, if that was given out already."""
    asked = worker if number is None else {**msgspec.structs.asdict(worker), "number": number}
    registered = await db.call("register", asked, durable=True, reads=_Registrations)
    await chores.finish_left(db, registered.left)
    return registered.number


async def reclaim(db: Session, asked: Millis | None) -> Reclaimed:
    """Takes back the runs of all incarnations whose lease has ended, unless the server comes to it late: then it hung,
    and those who live get the time until the next look to renew."""
    return await _take_back(db, {}, {} if asked is None else {"by": asked + HELD_UP})


async def bury(db: Session, name: str) -> int:
    """Takes back the runs of one incarnation, whatever its lease; returns how many."""
    return (await _take_back(db, {"name": name})).count


async def _take_back(db: Session, which: dict[str, str], first: dict[str, Millis] | None = None) -> Reclaimed:
    """Takes back runs, in as many calls as it takes; `first` is what only the first one is told besides."""
    taken = 0
    asked = {**which, **(first or {})}
    while True:
        found = await db.call("reclaim", asked, durable=True, reads=Takings)
        taken += found.runs
        asked = which
        if found.chores:
            taken += await chores.finish(db)
        if not found.more:
            if found.batches:
                await tidy(db)
            return Reclaimed(taken, found.next_at, found.late)


async def retire(db: Session, worker: int) -> None:
    """Ends an incarnation in good order: what it owns is queued again and not counted."""
    left = await db.call("retire", {"worker": worker}, durable=True, reads=_Left)
    await chores.finish_left(db, left)
