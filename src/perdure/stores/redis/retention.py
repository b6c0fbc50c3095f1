"""What leaves the store: runs that retention lets go, and those that somebody deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from perdure.errors import RunNotEnded
from perdure.model import Millis, Retention, State
from perdure.stores.redis import endings, reads
from perdure.stores.redis.chores import finish_left
from perdure.stores.redis.control import explain
from perdure.stores.redis.endings import Line
from perdure.stores.redis.session import Refused, Session
from perdure.stores.shared.retention import choose

_RUNS = 50
"""The most runs that one script removes,"""
_ROWS = 2000
"""and the most checkpoints and signals with them, unless it is one run: they bound how long a server is kept busy."""
_PARENTS = 50
"""Of how many runs the children are counted with one call."""


_NOT_COUNTED: dict[Retention, int] = {}


class _Pruned(Struct):
    removed: int
    taken: int
    """How many of the runs it was asked for were taken up."""
    young: list[str] = []
    """Those of them that did not end so long ago."""
    more: bool = False
    """Whether there may be more batches without runs."""


class _Deleted(Struct):
    removed: int = 0
    uncounted: bool = False
    """Nothing was done: there are more runs than one script removes, and they were not counted yet."""
    left: int | None = None


class _Kin(Struct):
    runs: int
    live: int
    parents: list[str]
    """Those of the runs that have children themselves."""
    rest: list[tuple[str, int]]
    """Parents that have more, and the numbers behind which to go on."""


_Kins = msgspec.msgpack.Decoder(_Kin)
_Prunings = msgspec.msgpack.Decoder(_Pruned)
_Cursors = msgspec.msgpack.Decoder(tuple[str, bool])


class _Policy:
    """What a policy lets go, one after the other."""

    def __init__(self, policy: Retention, line: Line, now: Millis, last: int | None) -> None:
        self.line = line
        self.over = False
        """Whether one came that is to stay, as all that come after it."""
        self._surplus = 0 if policy.count is None or last is not None else line.total - policy.count
        self._last = -1 if last is None else last
        self._latest = None if policy.age is None else now - policy.age

    def next(self) -> _Going | None:
        """The next one that goes."""
        following = None if self.over else self.line.next
        if following is None:
            return None
        number, run_id = following
        if self.line.before < self._surplus or number <= self._last:
            return _Going(number, run_id, None, self)
        self.over = self._latest is None or self.line.since > self._latest
        return None if self.over else _Going(number, run_id, self._latest, self)


class _Going(NamedTuple):
    """A run that a policy lets go, but if it ended later than it may."""

    number: int
    run_id: str
    latest: Millis | None
    policy: _Policy


async def prune(
    db: Session, policies: Sequence[Retention], limit: int, last: Mapping[Retention, int] = _NOT_COUNTED
) -> int:
    """Removes runs that policies let go, oldest end first, but for those whose parent or batch lives; returns how many.
    `last` says, where others have counted, in a cluster: the last in the order of finishing that is beyond the count of
    a policy.

    Each call of a script looks at, or takes up, so many of them, whatever the number of lanes.
    """
    await _let_go(db)
    found = await endings.read(db, policies)
    held = [_Policy(policy, line, found.now, last.get(policy)) for policy, line in found.lines.items()]
    asked: dict[str, Any] = {"rows": _ROWS, "limit": _RUNS}
    empty = choose(policies, "", State.SUCCEEDED)
    if empty is not None and empty.age is not None:
        asked["empty"] = empty.age
    removed, more = 0, "empty" in asked
    going: list[_Going] = []
    while removed < limit:
        going += await _choose(held, min(_RUNS, limit - removed) - len(going))
        if not (going or more):
            break
        asked["runs"] = [(each.run_id, each.number, each.latest) for each in going]
        pruned = await db.call("prune", asked, durable=True, reads=_Prunings)
        removed, more = removed + pruned.removed, pruned.more
        for each in going[: pruned.taken]:
            each.policy.over |= each.run_id in pruned.young
        going = going[pruned.taken :]
    return removed


async def _choose(policies: Sequence[_Policy], most: int) -> list[_Going]:
    """The next runs that policies let go, oldest end first."""
    chosen: list[_Going] = []
    while len(chosen) < most:
        first = min((each for each in map(_Policy.next, policies) if each), default=None)
        if first is None:
            break
        chosen.append(first)
        await first.policy.line.step()
    return chosen


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
    asked: dict[str, Any] = {"run_id": run_id, "force": force, "body": '"deleted"'}
    try:
        found = msgspec.convert(await db.call("delete", asked, durable=True), _Deleted)
        if found.uncounted:
            live, family = await _count(db, run_id)
            if live and not force:
                raise Refused("live", [live, family])
            found = msgspec.convert(await db.call("delete", {**asked, "counted": family}, durable=True), _Deleted)
    except Refused as refused:
        if refused.kind == "live":
            live, family = refused.said
            raise RunNotEnded(
                f"{live} of the {family} runs that go with run {run_id} have not ended: cancel it first, or force"
            ) from None
        raise explain(refused, run_id) from None
    await finish_left(db, found.left)
    return found.removed


async def _count(db: Session, run_id: str) -> tuple[int, int]:
    """How many runs of a family have not ended, and how many it has; looks at a bounded number with each call."""
    ended = await reads.ended(db, [run_id])
    live, family = 0 if ended else 1, 1
    seen, left = {run_id}, [(run_id, 0)]
    while left:
        asked, left = left[:_PARENTS], left[_PARENTS:]
        found = await db.call("kin", asked, reads=_Kins)
        live, family = live + found.live, family + found.runs
        left = [*found.rest, *left, *((parent, 0) for parent in found.parents if parent not in seen)]
        seen.update(found.parents)
    return live, family
