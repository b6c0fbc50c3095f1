"""What leaves the store: runs that retention lets go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from perdure.model import Retention, State
from perdure.stores.postgres.session import Session
from perdure.stores.sqlite.retention import choose

_Lanes = msgspec.json.Decoder(list[tuple[int, str, dict[State, int], dict[State, int]]])


async def prune(db: Session, policies: Sequence[Retention], limit: int) -> int:
    """Removes at most `limit` runs that the policies let go, oldest end first; returns how many."""
    removed = 0
    more = True
    while more and removed < limit:
        endings, parents = await _due(db, policies, limit - removed)
        if not endings and not parents:
            break
        gone, more = await db.call("prune", [seq for _, seq in endings], [finish for finish, _ in endings], parents)
        removed += gone
    return removed


async def _due(db: Session, policies: Sequence[Retention], limit: int) -> tuple[list[tuple[int, int]], list[str]]:
    """What policies let go, as (place in the order of finishing, number), and parents that ended since some of their
    children were passed over."""
    parents = [row[0] for row in await db.read("parents", limit)]
    places: dict[Retention, list[tuple[int, State]]] = defaultdict(list)
    runs: dict[Retention, int] = defaultdict(int)
    for lane, workflow, ended, kept in await db.decode(_Lanes, "lanes"):
        for state, number in ended.items():
            policy = choose(policies, workflow, state) if number else None
            if policy is not None:
                places[policy].append((lane, state))
                runs[policy] += number - kept.get(state, 0)
    found: list[tuple[int, int]] = []
    now = db.clock() or int(await db.get("now"))
    for policy, held in places.items():
        surplus = 0 if policy.count is None else runs[policy] - policy.count
        latest = None if policy.age is None else now - policy.age
        rows = await db.read("first_ended", [lane for lane, _ in held], [state for _, state in held], limit)
        for number, (finish, finished_at, seq) in enumerate(rows):
            if number >= surplus and (latest is None or finished_at > latest):
                break
            found.append((finish, seq))
    return sorted(found)[:limit], parents
