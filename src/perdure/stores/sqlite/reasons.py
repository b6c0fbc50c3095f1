"""Why runs are kept from running: what the store decides by, when it is asked."""

from __future__ import annotations

from perdure.stores.shared.reasons import Facts, explain, heads_of, holders_of, read_facts, read_pauses
from perdure.stores.sqlite.claim import budgets
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("reasons")


def reasons(transaction: Transaction, numbers: str) -> dict[int, str]:
    """For those of the runs that something keeps from running: what it is. A free slot or a worker may lack besides."""
    facts = _facts(transaction, numbers)
    if not facts:
        return {}
    holders = _facts(transaction, encode(holders_of(facts)))
    heads = heads_of([*facts, *holders])
    groups = encode(sorted({head.group for head in heads if head.group}))
    pauses = read_pauses(transaction.row(_SQL["pauses"], {"groups": groups})[0])
    return explain(facts, holders, pauses, budgets(transaction, heads), transaction.now)


def _facts(transaction: Transaction, numbers: str) -> list[Facts]:
    return read_facts(transaction.row(_SQL["facts"], {"runs": numbers, "now": transaction.now})[0])
