"""What leaves the store: runs that retention lets go, and those that somebody deletes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.errors import RunNotEnded
from perdure.model import Retention, State
from perdure.stores.redis.control import explain
from perdure.stores.redis.session import Refused, Session
from perdure.stores.shared.retention import choose

_RUNS = 100
"""The most runs that one script removes,"""
_ROWS = 2000
"""and the most checkpoints and signals with them, unless it is one run: they bound how long a server is kept busy."""
_ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


_NOT_COUNTED: dict[Retention, int] = {}


class _Pruned(Struct):
    removed: int
    more: bool


_Prunings = msgspec.msgpack.Decoder(_Pruned)
_Lanes = msgspec.msgpack.Decoder(list[tuple[str, str]])
_Cursors = msgspec.msgpack.Decoder(tuple[str, bool])


async def prune(
    db: Session, policies: Sequence[Retention], limit: int, last: Mapping[Retention, int] = _NOT_COUNTED
) -> int:
    """Removes runs that policies let go, oldest end first, but for those whose parent or batch lives; returns how many.
    `last` says, where others have counted, in a cluster: the last in the order of finishing that is beyond the count of
    a policy.

    A call takes up so many of them; what policies say is looked at anew in each.
    """
    await _let_go(db)
    places = await places_of(db, policies)
    asked: dict[str, Any] = {
        "policies": [_policy(policy, found, last.get(policy)) for policy, found in places.items()],
        "rows": _ROWS,
    }
    empty = choose(policies, "", State.SUCCEEDED)
    if empty is not None and empty.age is not None:
        asked["empty"] = empty.age
    removed, more = 0, True
    while more and removed < limit:
        asked["limit"] = min(_RUNS, limit - removed)
        found = await db.call("prune", asked, durable=True, reads=_Prunings)
        removed += found.removed
        more = found.more
    return removed


async def places_of(db: Session, policies: Sequence[Retention]) -> dict[Retention, list[tuple[str, State]]]:
    """Lanes and outcomes for which each policy holds."""
    places: dict[Retention, list[tuple[str, State]]] = defaultdict(list)
    for lane, workflow in await db.call("lanes", reads=_Lanes):
        for state in _ENDED:
            policy = choose(policies, workflow, state)
            if policy is not None:
                places[policy].append((lane, state))
    return places


def _policy(policy: Retention, places: list[tuple[str, State]], last: int | None) -> dict[str, Any]:
    asked: dict[str, Any] = {"places": places}
    if last is not None:
        asked["last"] = last
    if policy.age is not None:
        asked["age"] = policy.age
    if policy.count is not None:
        asked["count"] = policy.count
    return asked


async def _let_go(db: Session) -> None:
    """Has runs looked at again that were passed over, if what kept them does not live any more."""
    cursor = "0"
    while True:
        following, again = await db.call("let_go", {"cursor": cursor}, durable=True, reads=_Cursors)
        if again:
            continue
        if following == "0":
            return
        cursor = following


async def delete(db: Session, run_id: str, *, force: bool) -> int:
    """Removes a run and its descendants; returns how many. What has not ended is cancelled first."""
    asked = {"run_id": run_id, "force": force, "body": '"deleted"'}
    try:
        return int(await db.call("delete", asked, durable=True))
    except Refused as refused:
        if refused.kind == "live":
            live, family = refused.said
            raise RunNotEnded(
                f"{live} of the {family} runs that go with run {run_id} have not ended: cancel it first, or force"
            ) from None
        raise explain(refused, run_id) from None
