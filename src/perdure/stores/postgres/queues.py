"""The queues at one moment."""

from __future__ import annotations

from perdure.model import QueueReport
from perdure.stores.postgres import limits
from perdure.stores.postgres.reasons import budgets
from perdure.stores.postgres.session import Session
from perdure.stores.shared.queues import LATELY, compose, read_rows


async def report(db: Session) -> list[QueueReport]:
    """What is in each queue that was ever used, or for which something is set, by name."""
    now = await db.time()
    rows = await db.text("queues", now - LATELY, db.clock())
    return compose(read_rows(rows), await limits.limits(db), await budgets(db, []), now)
