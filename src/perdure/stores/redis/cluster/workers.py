"""Incarnations in all partitions: the first one gives out their numbers, and says whether they live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from perdure.stores.base import Registration
from perdure.stores.redis import batches, worker
from perdure.stores.redis.cluster.parts import Parts, together
from perdure.stores.redis.session import Session

_MOST = 7
"""The most incarnations that one script forgets."""

_Leases = msgspec.msgpack.Decoder(tuple[list[int], list[int]])
_Suspects = msgspec.msgpack.Decoder(list[tuple[int, int, int, int]])


async def register(parts: Parts, registration: Registration) -> int:
    """Begins an incarnation everywhere; returns its id."""
    number = await worker.register(parts.first, registration)
    await together(worker.register(session, registration, number) for session in parts.sessions[1:])
    return number


async def take_back(parts: Parts, name: str | None = None) -> int:
    """Takes back the runs of incarnations that have died, or of those with a name; returns how many.

    The first partition says which have died. Where it has forgotten one that others know yet, since whoever took it
    back came no further, its lease there ends as well. Which runs are blamed is decided for all partitions together.
    """

    async def leases(session: Session) -> tuple[list[int], list[int]]:
        return await session.call("leases", {} if name is None else {"name": name}, reads=_Leases)

    found = await parts.each(leases)
    dead = sorted({number for ended, _ in found for number in ended} - {*found[0][1]})
    taken = 0
    for first in range(0, len(dead), _MOST):
        taken += await _take_back(parts, dead[first : first + _MOST], ended=name is None)
    await parts.each(batches.tidy)
    return taken


async def _take_back(parts: Parts, numbers: list[int], *, ended: bool) -> int:
    async def suspects(session: Session) -> list[tuple[int, int, int, int]]:
        return await session.call("suspects", {"numbers": numbers}, reads=_Suspects)

    async def reclaim(session: Session, which: list[int]) -> worker.Taken:
        asked = {"numbers": which, "judged": judged, "ended": ended and session is parts.first}
        return await session.call("reclaim", asked, durable=True, reads=worker.Takings)

    judged = _judge(each for found in await parts.each(suspects) for each in found)
    first = await reclaim(parts.first, numbers)
    if not first.numbers:
        return 0
    others = await together(reclaim(session, first.numbers) for session in parts.sessions[1:])
    return first.runs + sum(taken.runs for taken in others)


async def retire(parts: Parts, number: int) -> None:
    """Ends an incarnation in good order."""
    await worker.retire(parts.first, number)
    await together(worker.retire(session, number) for session in parts.sessions[1:])


def _judge(suspects: Iterable[tuple[int, int, int, int]]) -> dict[str, tuple[int, int, int]]:
    """Of each incarnation the most crashes, how many runs have so many, and the last claim of these."""
    of: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, crashes, blamed, last in suspects:
        of[number].append((crashes, blamed, last))
    judged: dict[str, tuple[int, int, int]] = {}
    for number, found in of.items():
        most = max(crashes for crashes, _, _ in found)
        worst = [(blamed, last) for crashes, blamed, last in found if crashes == most]
        judged[str(number)] = most, sum(blamed for blamed, _ in worst), max(last for _, last in worst)
    return judged
