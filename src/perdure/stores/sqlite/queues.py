"""The queues at one moment."""

from __future__ import annotations

from perdure.model import QueueReport
from perdure.stores.shared.queues import LATELY, compose, read_rows
from perdure.stores.sqlite import limits
from perdure.stores.sqlite.claim import budgets
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import load

_SQL = load("queues")


def report(transaction: Transaction) -> list[QueueReport]:
    """What is in each queue that was ever used, or for which something is set, by name."""
    now = transaction.now
    rows = transaction.row(_SQL["report"], {"since": now - LATELY, "now": now})[0]
    return compose(read_rows(rows), limits.limits(transaction), budgets(transaction, []), now)
