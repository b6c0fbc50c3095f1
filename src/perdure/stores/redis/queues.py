"""The queues at one moment."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.model import Millis, QueueReport
from perdure.stores.redis import limits
from perdure.stores.redis.budgets import Row as BudgetRow
from perdure.stores.redis.budgets import left_of
from perdure.stores.redis.session import Session
from perdure.stores.shared.queues import LATELY, Row, compose

_LANES = 32
"""Of how many lanes one call counts what has ended."""


class Found(Struct):
    """What scripts say of lanes."""

    now: Millis
    rows: list[Row] = []
    lanes: list[str] = []
    budgets: list[BudgetRow] = []
    running: list[tuple[str, str, int]] = []


_founds = msgspec.msgpack.Decoder(Found)
_rows = msgspec.msgpack.Decoder(list[Row])


async def report(db: Session) -> list[QueueReport]:
    """What is in each queue that has runs, or for which something is set, by name."""
    found = await look(db)
    records = await limits.limits(db)
    return compose(found.rows, records, left_of(found.budgets, found.running), found.now)


async def look(db: Session) -> Found:
    """What is in each lane just now, and what has ended lately."""
    found = await db.call("queues", reads=_founds)
    for first in range(0, len(found.lanes), _LANES):
        asked = {"lanes": found.lanes[first : first + _LANES], "since": found.now - LATELY}
        found.rows += await db.call("lately", asked, reads=_rows)
    return found
