"""Incarnations in all partitions: the first one gives out their numbers, and says whether they live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from perdure.stores.base import Registration
from perdure.stores.redis import batches, chores, worker
from perdure.stores.redis.cluster.parts import Parts, together
from perdure.stores.redis.session import Session
from perdure.stores.shared.leases import Promptness

_MOST = 7
"""The most incarnations that one script forgets."""

_Leases = msgspec.msgpack.Decoder(tuple[list[int], list[int], bool])


class _Suspicion(Struct):
    """What is known of the runs of one incarnation: the most crashes, how many have so many, the first one of these
    that was looked at, and the last claim of them."""

    cursor: str = ""
    most: int = -1
    blamed: int = 0
    last: int = -1
    first: str = ""


_Suspects = msgspec.msgpack.Decoder(dict[str, _Suspicion])


async def register(parts: Parts, registration: Registration) -> int:
    """Begins an incarnation everywhere; returns its id."""
    number = await worker.register(parts.first, registration)
    await together(worker.register(session, registration, number) for session in parts.sessions[1:])
    return number


async def reclaim(parts: Parts, promptness: Promptness) -> int:
    """Takes back the runs of incarnations that have died; returns how many. None are when a server hung until now:
    those who live get the time until the next look to renew."""
    if await promptness.hung(parts.each(lambda session: session.call("now"))):
        return 0
    return await take_back(parts)


async def take_back(parts: Parts, name: str | None = None) -> int:
    """Takes back the runs of incarnations that have died, or of those with a name; returns how many.

    The first partition says which have died. Where it has forgotten one that others know yet, since whoever took it
    back came no further, its lease there ends as well. Which runs are blamed is decided for all partitions together.
    """

    async def leases(session: Session) -> tuple[list[int], list[int], bool]:
        return await session.call("leases", {} if name is None else {"name": name}, reads=_Leases)

    found = await parts.each(leases)
    dead = sorted({number for ended, _, _ in found for number in ended} - {*found[0][1]})
    taken = 0
    for first in range(0, len(dead), _MOST):
        taken += await _take_back(parts, dead[first : first + _MOST], ended=name is None)
    await parts.each(batches.tidy)
    for session, (_, _, left) in zip(parts.sessions, found, strict=True):
        if left:
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
