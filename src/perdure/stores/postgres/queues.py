"""The queues at one moment."""

from __future__ import annotations

from perdure.model import QueueReport
from perdure.stores.postgres import limits
from perdure.stores.postgres.session import Session
from perdure.stores.sqlite.queues import _MINUTE, _Rows, compose


async def report(db: Session) -> list[QueueReport]:
    """What is in each queue that was ever used, or for which something is set, by name."""
    now = db.clock() or int(await db.get("now"))
    rows = await db.decode(_Rows, "queues", now - _MINUTE)
    return compose(rows, await limits.limits(db))
