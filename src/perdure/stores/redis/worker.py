"""Incarnations: how they begin and end."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.stores.base import Registration
from perdure.stores.redis import chores
from perdure.stores.redis.batches import tidy
from perdure.stores.redis.session import Session
from perdure.stores.shared.leases import Promptness


class Taken(Struct):
    """What came of taking back runs; `numbers` are the incarnations that were forgotten, if they were asked for so."""

    runs: int
    more: bool
    batches: bool
    chores: bool
    numbers: list[int] = []


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


async def reclaim(db: Session, promptness: Promptness) -> int:
    """Takes back the runs of all incarnations whose lease has ended; returns how many. None are when the server
    hung until now: those who live get the time until the next look to renew."""
    if await promptness.hung(db.call("now")):
        return 0
    return await _take_back(db, {})


async def bury(db: Session, name: str) -> int:
    """Takes back the runs of one incarnation, whatever its lease; returns how many."""
    return await _take_back(db, {"name": name})


async def _take_back(db: Session, which: dict[str, str]) -> int:
    taken = 0
    while True:
        found = await db.call("reclaim", which, durable=True, reads=Takings)
        taken += found.runs
        if found.chores:
            taken += await chores.finish(db)
        if not found.more:
            if found.batches:
                await tidy(db)
            return taken


async def retire(db: Session, worker: int) -> None:
    """Ends an incarnation in good order: what it owns is queued again and not counted."""
    left = await db.call("retire", {"worker": worker}, durable=True, reads=_Left)
    await chores.finish_left(db, left)
