"""Runs that have ended, in the order in which they did: each call looks at a bounded number of them, however many lanes
there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

import msgspec
from msgspec import Struct

from perdure.model import Millis, Retention, State
from perdure.stores.redis.session import Session
from perdure.stores.shared.retention import choose


class _Place(Struct):
    """A lane and an outcome."""

    lane: str
    state: State
    workflow: str
    total: int
    """How many runs there are from the first one here on."""
    done: Millis
    """When the first one ended."""
    runs: list[tuple[int, str]]
    """The first ones, by their numbers in the order of finishing."""


class _Found(Struct):
    now: Millis
    number: int
    cursor: str
    places: list[_Place] = []


_founds = msgspec.msgpack.Decoder(_Found)


class Line:
    """The runs for which one policy holds, in the order in which they ended."""

    def __init__(self, db: Session, places: Sequence[_Place]) -> None:
        self.total = sum(place.total for place in places)
        """How many runs there were when the line was made."""
        self.before = 0
        """How many of these come before the next one: those that it told of, and those that others removed since."""
        self._db = db
        self._places = places
        self._told = [0] * len(places)
        self._heads = [(place.runs[0][0], at) for at, place in enumerate(places)]
        heapify(self._heads)

    @property
    def next(self) -> tuple[int, str] | None:
        """The number and the id of the next one."""
        if not self._heads:
            return None
        at = self._heads[0][1]
        return self._places[at].runs[self._told[at]]

    @property
    def since(self) -> Millis:
        """A time before which the next one has not ended."""
        return self._places[self._heads[0][1]].done

    async def step(self) -> None:
        """Goes on behind the next one."""
        number, at = heappop(self._heads)
        place = self._places[at]
        self.before += 1
        self._told[at] += 1
        if self._told[at] == len(place.runs) and place.total > len(place.runs):
            await self._read_on(place, number)
            self._told[at] = 0
        if self._told[at] < len(place.runs):
            heappush(self._heads, (place.runs[self._told[at]][0], at))

    async def _read_on(self, place: _Place, number: int) -> None:
        asked = {"lane": place.lane, "state": place.state, "after": number}
        found = (await self._db.call("endings", asked, reads=_founds)).places
        unread = place.total - len(place.runs)
        place.runs, place.total = (found[0].runs, found[0].total) if found else ([], 0)
        if found:
            place.done = found[0].done
        self.before += unread - place.total


class Endings(Struct):
    """What has ended, by the policies that hold for it."""

    now: Millis
    number: int
    """That of a run that ends now, where numbers follow the time."""
    lines: Mapping[Retention, Line]


async def read(db: Session, policies: Sequence[Retention]) -> Endings:
    """Looks at what has ended."""
    places: dict[tuple[str, State], _Place] = {}
    found = _Found(0, 0, "0")
    while True:
        found = await db.call("endings", {"cursor": found.cursor}, reads=_founds)
        places.update(((place.lane, place.state), place) for place in found.places)
        if found.cursor == "0":
            break
    held: dict[Retention, list[_Place]] = defaultdict(list)
    for place in places.values():
        policy = choose(policies, place.workflow, place.state)
        if policy is not None:
            held[policy].append(place)
    return Endings(found.now, found.number, {policy: Line(db, its) for policy, its in held.items()})
