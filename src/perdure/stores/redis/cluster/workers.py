"""Incarnations in all partitions: the first one gives out their numbers, and says whether they live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from perdure.model import Millis
from perdure.stores.base import Reclaimed, Registration
from perdure.stores.redis import batches, chores, worker
from perdure.stores.redis.cluster.parts import Parts, together
from perdure.stores.redis.session import Session
from perdure.stores.shared.leases import is_late

_MOST = 7
"""The most incarnations that one script forgets."""


class _Leases(Struct):
    """What a partition knows of incarnations: those whose lease has ended, those that live, and when the first lease
    ends of these."""

    ended: list[int]
    live: list[int]
    chores: bool
    now: Millis
    next_at: Millis | None = None


class _Suspicion(Struct):
    """What is known of the runs of one incarnation: the most crashes, how many have so many, the first one of these
    that was looked at, and the last claim of them."""

    cursor: str = ""
    most: int = -1
    blamed: int = 0
    last: int = -1
    first: str = ""


_Found = msgspec.msgpack.Decoder(_Leases)
_Suspects = msgspec.msgpack.Decoder(dict[str, _Suspicion])


async def register(parts: Parts, registration: Registration) -> int:
    """Begins an incarnation everywhere; returns its id."""
    number = await worker.register(parts.first, registration)
    await together(worker.register(session, registration, number) for session in parts.sessions[1:])
    return number


async def reclaim(parts: Parts, asked: Millis | None) -> Reclaimed:
    """Takes back the runs of incarnations that have died, unless a server came to it late: then it hung, and those who
    live get the time until the next look to renew.

    The first partition says which have died. Where it has forgotten one that others know yet, since whoever took it
    back came no further, its lease there ends as well. Which runs are blamed is decided for all partitions together.
    """
    found = await parts.each(lambda session: session.call("leases", reads=_Found))
    next_at = found[0].next_at
    if is_late(asked, max(each.now for each in found)):
        return Reclaimed(0, next_at, late=True)
    return Reclaimed(await _take_back_all(parts, found, ended=True), next_at)


async def bury(parts: Parts, name: str) -> int:
    """Takes back the runs of incarnations with a name; returns how many."""
    found = await parts.each(lambda session: session.call("leases", {"name": name}, reads=_Found))
    return await _take_back_all(parts, found, ended=False)


async def _take_back_all(parts: Parts, found: list[_Leases], *, ended: bool) -> int:
    dead = sorted({number for each in found for number in each.ended} - {*found[0].live})
    taken = 0
    for first in range(0, len(dead), _MOST):
        taken += await _take_back(parts, dead[first : first + _MOST], ended=ended)
    await parts.each(batches.tidy)
    for session, each in zip(parts.sessions, found, strict=True):
        if each.chores:
            taken += await chores.finish(session)
    return taken


async def _take_back(parts: Parts, numbers: list[int], *, ended: bool) -> int:
    async def suspects(session: Session) -> dict[str, _Suspicion]:
        found = {str(number): _Suspicion() for number in numbers}
        while any(each.cursor != "0" for each in found.values()):
            found = await session.call("suspects", found, reads=_Suspects)
        return found

    async def reclaim(session: Session, which: list[int]) -> worker.Taken:
        asked = {"numbers": which, "judged": judged, "ended": ended and session is parts.first}
        taken = await session.call("reclaim", asked, durable=True, reads=worker.Takings)
        if taken.chores:
            taken.runs += await chores.finish(session)
        return taken

    judged = _judge(await parts.each(suspects))
    first = await reclaim(parts.first, numbers)
    if not first.numbers:
        return 0
    others = await together(reclaim(session, first.numbers) for session in parts.sessions[1:])
    return first.runs + sum(taken.runs for taken in others)


async def retire(parts: Parts, number: int) -> None:
    """Ends an incarnation in good order."""
    await worker.retire(parts.first, number)
    await together(worker.retire(session, number) for session in parts.sessions[1:])


def _judge(found: Iterable[dict[str, _Suspicion]]) -> dict[str, tuple[int, int, int]]:
    """Of each incarnation the most crashes, how many runs have so many, and the last claim of these."""
    of: defaultdict[str, list[_Suspicion]] = defaultdict(list)
    for suspicions in found:
        for number, each in suspicions.items():
            of[number].append(each)
    judged: dict[str, tuple[int, int, int]] = {}
    for number, each in of.items():
        most = max(one.most for one in each)
        worst = [one for one in each if one.most == most]
        judged[number] = most, sum(one.blamed for one in worst), max(one.last for one in worst)
    return judged
