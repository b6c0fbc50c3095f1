"""Lists of runs by filters: a script looks at so many runs, and is called again to go on from where it stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.model import FailureCause, Millis, RunQuery, RunRecord, State
from perdure.stores.redis import owned
from perdure.stores.redis.chores import finish_left
from perdure.stores.redis.reasons import Shown, explained
from perdure.stores.redis.session import Session

_SHOWN = 100
"""The most runs that one call tells of."""
_RETRIED = 50
"""The most runs that one call queues once more."""


class _Page(Shown):
    ids: tuple[str, ...] = ()
    crowded: tuple[str, ...] = ()
    """Nothing was looked at, since more runs are running than one script looks at: these workers have them."""
    total: int | None = None
    """How many match in all, if the script knows."""
    at: int | None = None
    """Where to go on; None at the end."""


class _Cause(Struct):
    workflow: str
    cause: str
    runs: int
    finish: int
    last_at: Millis
    example: str


class _Causes(Struct):
    causes: list[_Cause] = []
    at: int | None = None


class _Retried(Struct):
    ids: list[str] = []
    claimed: list[str] = []
    left: int | None = None


_pages = msgspec.msgpack.Decoder(_Page)
_causes = msgspec.msgpack.Decoder(_Causes)
_retries = msgspec.msgpack.Decoder(_Retried)


async def list_runs(db: Session, query: RunQuery) -> list[RunRecord]:
    """Lists runs, in the order of enqueueing or against it."""
    return [record async for page in _walk(db, query) for record in explained(page)]


async def causes(db: Session, query: RunQuery) -> list[FailureCause]:
    """Failed runs by cause, most first."""
    failed = replace(query, states=[State.FAILED])
    found: dict[tuple[str, str], _Cause] = {}
    after = query.after
    while True:
        page = await db.call("causes", {"query": failed, **_behind(after)}, reads=_causes)
        for cause in page.causes:
            _add(found, cause)
        after = page.at
        if after is None:
            break
    ranked = sorted(found.values(), key=lambda cause: (-cause.runs, -cause.last_at))
    return [FailureCause(each.workflow, each.cause, each.runs, each.last_at, each.example) for each in ranked][
        : query.limit
    ]


async def retry_many(db: Session, query: RunQuery, *, dry_run: bool) -> list[str]:
    """Queues failed (or cancelled) runs once more; returns the ids of those that it does, or would."""
    asked = query.states or [State.FAILED]
    states = [state for state in asked if state in (State.FAILED, State.CANCELLED)]
    if not states:
        return []
    ids = [run_id async for page in _walk(db, replace(query, states=states), ids=True) for run_id in page.ids]
    return await retry_all(db, ids, dry_run=dry_run)


async def retry_all(db: Session, ids: Sequence[str], *, dry_run: bool) -> list[str]:
    """Queues those of some runs once more that can be; returns their ids, in the same order."""
    done: list[str] = []
    claimed: list[str] = []
    for first in range(0, len(ids), _RETRIED):
        wanted: dict[str, Any] = {"ids": ids[first : first + _RETRIED], "dry_run": dry_run, "claimed": claimed}
        found = await db.call("retry", wanted, durable=not dry_run, reads=_retries)
        await finish_left(db, found.left)
        done += found.ids
        claimed += found.claimed
    return done


async def _walk(db: Session, query: RunQuery, *, ids: bool = False) -> AsyncIterator[_Page]:
    after, left = query.after, query.limit
    total: int | None = None
    while left > 0:
        asked = {"query": query, "most": min(left, _SHOWN), "ids": ids, **_behind(after)}
        page = await db.call("list", asked, reads=_pages)
        if page.crowded:
            async for each in _walk_running(db, query, page.crowded, ids=ids):
                yield each
            return
        yield page
        left -= len(page.runs) + len(page.ids)
        if query.after is None and total is None:
            total = page.total
        after = page.at
        if after is None or (total is not None and query.limit - left >= total):
            return


async def _walk_running(db: Session, query: RunQuery, workers: Sequence[str], *, ids: bool) -> AsyncIterator[_Page]:
    """Runs that are running, by what workers own."""
    found = [(run.seq, run.id) for worker in workers for run in await owned.read(db, worker)]
    found = sorted(set(found), reverse=not query.oldest_first)
    after, left = query.after, query.limit
    if after is not None:
        found = [each for each in found if (each[0] > after if query.oldest_first else each[0] < after)]
    given = [run_id for _, run_id in found]
    while given and left > 0:
        asked = {"query": query, "most": left, "ids": ids, "given": given[:_SHOWN]}
        page = await db.call("list", asked, reads=_pages)
        yield page
        left -= len(page.runs) + len(page.ids)
        given = given[page.at or _SHOWN :]


def _behind(after: int | None) -> dict[str, int]:
    return {} if after is None else {"after": after}


def _add(found: dict[tuple[str, str], _Cause], cause: _Cause) -> None:
    known = found.setdefault((cause.workflow, cause.cause), cause)
    if known is not cause:
        known.runs += cause.runs
        if cause.finish > known.finish:
            known.finish, known.last_at, known.example = cause.finish, cause.last_at, cause.example
