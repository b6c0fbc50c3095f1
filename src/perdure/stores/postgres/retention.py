"""What leaves the store: runs that retention lets go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from perdure.model import Millis, Retention, State
from perdure.stores.postgres.session import Session
from perdure.stores.shared.retention import Due, Ending, choose

_Lanes = msgspec.json.Decoder(list[tuple[int, str, dict[State, int]]])


async def prune(db: Session, policies: Sequence[Retention], limit: int) -> int:
    """Removes at most `limit` runs that the policies let go, oldest end first; returns how many."""
    removed = 0
    more = True
    while more and removed < limit:
        due = await _due(db, policies, limit - removed)
        if due.nothing:
            break
        more = False
        for part in due.parts():
            gone, changed = await db.call(
                "prune",
                db.clock(),
                [ending.seq for ending in part.endings],
                [ending.finish for ending in part.endings],
                part.keepers,
                part.empty,
            )
            removed += gone
            more |= changed
    return removed


async def _due(db: Session, policies: Sequence[Retention], limit: int) -> Due:
    """What policies let go, at most `limit`. Reads little more than it returns."""
    keepers = [row[0] for row in await db.read("keepers", limit)]
    places: dict[Retention, list[tuple[int, State]]] = defaultdict(list)
    for lane, workflow, ended in await db.decode(_Lanes, "lanes"):
        for state, number in ended.items():
            policy = choose(policies, workflow, state) if number else None
            if policy is not None:
                places[policy].append((lane, state))
    found: list[Ending] = []
    now = await db.time()
    for policy, held in places.items():
        latest = None if policy.age is None else now - policy.age
        counted = policy.count is not None
        rows = await db.read("first_ended", [lane for lane, _ in held], [state for _, state in held], limit, counted)
        for number, (finish, finished_at, seq, runs) in enumerate(rows):
            surplus = 0 if policy.count is None else runs - policy.count
            if number >= surplus and (latest is None or finished_at > latest):
                break
            found.append(Ending(finish, seq))
    endings = sorted(found)[:limit]
    sizes = [row[0] for row in await db.read("sizes", [ending.seq for ending in endings])]
    return Due(keepers, endings, sizes, await _empty(db, policies, now, limit))


async def _empty(db: Session, policies: Sequence[Retention], now: Millis, limit: int) -> list[str]:
    """Batches without runs, which go when what succeeded does, of no workflow in particular."""
    policy = choose(policies, "", State.SUCCEEDED)
    if policy is None or policy.age is None:
        return []
    return [row[0] for row in await db.read("empty", now - policy.age, limit)]
