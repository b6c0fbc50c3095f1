"""Which runs a query means: the statement for it is put together once, of the parts in `list.sql`."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from perdure.model import FINAL_STATES, FailureCause, RunQuery, State
from perdure.stores.postgres.session import Session, parse

_SEQ = {"cause": "f.seq", "failed": "f.seq", "label": "b.run", "live": "v.seq", "running": "v.seq"}
"""Where a walk's own index has the number of the run: in that order no sorting is needed."""
_Causes = msgspec.json.Decoder(list[FailureCause])


async def numbers(db: Session, query: RunQuery) -> list[int]:
    """The numbers of the runs, in the order that was asked for."""
    sql = _statement(db, "oldest" if query.oldest_first else "newest", _walk(query))
    return [row[0] for row in await db.rows(sql, *_params(query))]


async def retryable(db: Session, query: RunQuery) -> list[int]:
    """The numbers of failed runs, or of those that the query says among failed and cancelled ones."""
    asked = query.states or [State.FAILED]
    states = [state for state in asked if state in (State.FAILED, State.CANCELLED)]
    return await numbers(db, replace(query, states=states)) if states else []


async def causes(db: Session, query: RunQuery) -> list[FailureCause]:
    """Failed runs by cause, most first."""
    failed = replace(query, states=[State.FAILED], after=None)
    rows = await db.rows(_statement(db, "causes", _walk(failed)), *_params(failed))
    return parse(_Causes, rows[0][0])


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
    # Runs that failed without a cause have none in the index.
    if query.states == [State.FAILED] or query.cause is not None:
        return "failed"
    if query.states == [State.RUNNING]:
        return "running"
    return "live" if query.states and not FINAL_STATES & set(query.states) else "all"


def _statement(db: Session, what: str, walk: str) -> str:
    parts = db.sql["list"]
    return parts[what].format(seq=_SEQ.get(walk, "r.seq"), walk=parts[walk], filters=parts["filters"])


def _params(query: RunQuery) -> list[object]:
    return [
        list(query.states) if query.states else None,
        query.workflow,
        query.queue,
        query.parent,
        query.batch,
        query.group,
        query.cause,
        list(query.labels) if query.labels else None,
        list(query.labels.values()) if query.labels else None,
        query.after,
        query.limit,
    ]
