"""Which runs a query means: the statement for it is put together once, of the parts in `list.sql`."""

from __future__ import annotations

import functools

import msgspec
from msgspec.structs import replace

from perdure.model import FailureCause, RunQuery, State
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("list")
_SEQ = {"cause": "f.run", "label": "b.run"}
"""Where a walk's own index has the number of the run: in that order no sorting is needed."""
_Causes = msgspec.json.Decoder(list[FailureCause])


def numbers(transaction: Transaction, query: RunQuery) -> str:
    """The numbers of the runs, as a JSON list, in the order that was asked for."""
    sql = _statement("oldest" if query.oldest_first else "newest", _walk(query))
    return transaction.row(sql, _params(query))[0]


def retryable(transaction: Transaction, query: RunQuery) -> str:
    """The numbers of failed runs, or of those that the query says among failed and cancelled ones."""
    asked = query.states or [State.FAILED]
    states = [state for state in asked if state in (State.FAILED, State.CANCELLED)]
    return numbers(transaction, replace(query, states=states)) if states else "[]"


def causes(transaction: Transaction, query: RunQuery) -> list[FailureCause]:
    """Failed runs by cause, most first."""
    failed = replace(query, states=[State.FAILED])
    return _Causes.decode(transaction.row(_statement("causes", _walk(failed)), _params(failed))[0])


def _walk(query: RunQuery) -> str:
    if query.parent is not None:
        return "children"
    if query.batch is not None:
        return "batch"
    if query.labels:
        return "label"
    if query.group is not None:
        return "group"
    if query.cause:
        return "cause"
    # Runs that failed without a cause have no row that tells of one.
    return "failed" if query.states == [State.FAILED] or query.cause is not None else "all"


@functools.cache
def _statement(what: str, walk: str) -> str:
    return _SQL[what].format(seq=_SEQ.get(walk, "r.seq"), walk=_SQL[walk], filters=_SQL["filters"])


def _params(query: RunQuery) -> dict[str, object]:
    return {
        "states": encode(query.states) if query.states else None,
        "workflow": query.workflow,
        "queue": query.queue,
        "parent": query.parent,
        "batch": query.batch,
        "group": query.group,
        "cause": query.cause,
        "labels": encode(list(query.labels.items())) if query.labels else None,
        "limit": query.limit,
        "after": query.after,
    }
