"""What a worker owns, where that is more than one script looks at: it is read in parts, and compared here."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from msgspec import Struct

from perdure.errors import StoreUnavailable
from perdure.stores.exchange import Exchange, Exchanged
from perdure.stores.redis.claims import token_of
from perdure.stores.redis.session import Session

logger = logging.getLogger("perdure.store")

MOST = 200
"""So many runs of a worker one script looks at."""
_HANDED = 50
"""The most runs that one script takes from a worker."""


class Owned(Struct, array_like=True):
    """A run that a worker owns; `low` is the part of its token that is not the worker."""

    id: str
    low: int
    seq: int


_Parts = msgspec.msgpack.Decoder(tuple[str, list[Owned]])


async def read(db: Session, worker: int | str) -> list[Owned]:
    """All that a worker owns, and has owned during the whole of the call; some may come twice."""
    found: list[Owned] = []
    cursor = "0"
    while True:
        cursor, part = await db.call("owned", {"worker": str(worker), "cursor": cursor}, reads=_Parts)
        found += part
        if cursor == "0":
            return found


async def claimed_by(db: Session, worker: int, serial: int) -> list[str]:
    """The runs that a worker has by the exchange of a serial."""
    return sorted({run.id for run in await read(db, worker) if run.low >> 8 == serial})


async def check(db: Session, said: Exchange, reply: Exchanged) -> None:
    """Adds to a reply which of the claims that a worker believes to own it does not own any more. And takes from it
    what it owns by the store's word alone, as after a failover: nobody else would care for that as long as it lives."""
    if said.owned is None or reply.gone:
        return
    try:
        owned = {token_of(said.worker, run.low): run for run in await read(db, said.worker)}
        settled = {settle.token for settle in said.settles}
        believed = {token for _, token in said.owned}
        reply.refused = sorted({*reply.refused, *(believed - owned.keys() - settled)})
        if not said.repeated:
            lost = owned.keys() - believed - {claim.token for claim in reply.claims}
            await _hand_back(db, said.worker, [owned[token] for token in sorted(lost)])
    except StoreUnavailable as error:
        logger.warning("what worker %d owns is compared again later (%s)", said.worker, error)


async def _hand_back(db: Session, worker: int, runs: list[Owned]) -> None:
    for first in range(0, len(runs), _HANDED):
        asked: dict[str, Any] = {"worker": worker, "runs": [(run.id, run.low) for run in runs[first : first + _HANDED]]}
        await db.call("hand_back", asked, durable=True)
