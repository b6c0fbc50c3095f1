"""Where runs are. One without ties is at the home of its id. One that lies with its group, say, has an entry at that
home: its place, which is the partition and a number that is never used again.

The entry is made before the run, if there is none, so one id is one run, whatever groups its starts name. Whoever finds
no run at a place (its start died in between, or it was pruned since) gives the place up there, in the partition, so
that no late start makes a run in it; then the entry can be replaced, and what is given up is cleared away by and by.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from perdure.errors import RunNotFound, StoreUnavailable
from perdure.model import Ended, Start, Started
from perdure.stores.redis import reads
from perdure.stores.redis.cluster.parts import Parts
from perdure.stores.redis.session import Session
from perdure.stores.redis.starts import Answer, Answers, answers, ask, chunks

logger = logging.getLogger("perdure.store")

T = TypeVar("T")

_KNOWN = 20_000
"""How many runs it is remembered of where they are."""
_CHUNK = 200
"""The most runs that one call looks for."""
_MOST_TURNS = 20
"""How often an entry may be found changed since it was looked at."""

_Texts = msgspec.msgpack.Decoder(list[str])
_Pairs = msgspec.msgpack.Decoder(list[tuple[str, str]])


def partition_of(place: str, home: int) -> int:
    """The partition of a place; that of the home has no name."""
    return int(place.partition("/")[0]) if place else home


class Places:
    """Finds runs, and makes them."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._known: dict[str, int] = {}

    # --- finding

    def learn(self, run_id: str, partition: int) -> None:
        """Remembers where a run is."""
        if run_id not in self._known and len(self._known) >= _KNOWN:
            del self._known[next(iter(self._known))]
        self._known[run_id] = partition

    def forget(self, run_ids: Iterable[str]) -> None:
        """What was remembered of them is to be looked up anew."""
        for run_id in run_ids:
            self._known.pop(run_id, None)

    async def locate(self, run_ids: Iterable[str]) -> dict[str, int]:
        """The partitions of runs; of one that there is not, the home of its id."""
        found = {run_id: self._known.get(run_id, -1) for run_id in run_ids}
        homes: defaultdict[int, list[str]] = defaultdict(list)
        for run_id, partition in found.items():
            if partition < 0:
                homes[self.parts.home(run_id)].append(run_id)

        async def look(session: Session, ids: list[str]) -> None:
            for first in range(0, len(ids), _CHUNK):
                chunk = ids[first : first + _CHUNK]
                for run_id, place in zip(chunk, await session.call("places", chunk, reads=_Texts), strict=True):
                    found[run_id] = partition_of(place, session.partition)
                    self.learn(run_id, found[run_id])

        await self.parts.some(homes, look)
        return found

    async def in_reach(self, run_ids: Iterable[str]) -> dict[str, int]:
        """The partitions of those runs of which this can be found out, and which can be reached."""
        out = self.parts.reach.out()
        near = [each for each in run_ids if each in self._known or self.parts.home(each) not in out]
        try:
            found = await self.locate(near)
        except StoreUnavailable:
            found = {run_id: self._known[run_id] for run_id in near if run_id in self._known}
        return {run_id: partition for run_id, partition in found.items() if partition not in out}

    async def at(
        self, run_id: str, do: Callable[[Session], Awaitable[T]], absent: Callable[[T], bool] = lambda _: False
    ) -> T:
        """Does something in the partition of a run. If it is not where it is remembered to be (`absent` says so of what
        came back, or `RunNotFound`), it is looked up and done once more."""
        remembered = self._known.get(run_id)
        if remembered is not None:
            try:
                result = await do(self.parts.sessions[remembered])
                if not absent(result):
                    return result
            except RunNotFound:
                pass
            self.forget([run_id])
        return await do(self.parts.sessions[(await self.locate([run_id]))[run_id]])

    async def split(self, run_ids: Iterable[str]) -> dict[int, list[str]]:
        """Runs by partition."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for run_id, partition in (await self.locate(run_ids)).items():
            found[partition].append(run_id)
        return found

    async def ended(self, run_ids: Sequence[str]) -> list[Ended]:
        """The outcomes of those of the runs that have ended, in the order in which they are asked for."""
        found: list[Ended] = []

        async def look(session: Session, ids: list[str]) -> None:
            found.extend(await reads.ended(session, ids))

        await self.parts.some(await self.split(run_ids), look)
        order = {run_id: number for number, run_id in enumerate(run_ids)}
        return sorted(found, key=lambda each: order[each.id])

    async def missing(self, run_ids: Sequence[str]) -> list[str]:
        """Those of the ids that no run has."""
        left = [*dict.fromkeys(run_ids)]
        for remembered in (True, False):
            gone: set[str] = set()

            async def look(session: Session, ids: list[str], gone: set[str] = gone) -> None:
                gone.update(await reads.missing(session, ids))

            await self.parts.some(await self.split(left), look)
            left = [run_id for run_id in left if run_id in gone]
            if remembered:
                self.forget(left)
        return left

    # --- making

    async def enqueue(self, starts: Sequence[Start]) -> list[Started]:
        """Makes runs; in each partition in order."""
        targets = await self._targets(starts)
        done: dict[int, Started] = {}
        left: list[int] = [*range(len(starts))]
        while left:  # Of several of one id, each finds what the one before has made.
            turn = {starts[n].id: n for n in reversed(left)}
            placing = Placing(self, [(starts[n], targets[n]) for n in sorted(turn.values())])
            for run_id, started in (await placing.make()).items():
                done[turn[run_id]] = started
            left = [n for n in left if n not in done]
        return [done[n] for n in range(len(starts))]

    async def _targets(self, starts: Sequence[Start]) -> list[int]:
        """Where each is to be made. A parent may be made with the same call."""
        here = {start.id for start in starts}
        parents = await self.locate({start.parent for start in starts if start.parent and start.parent not in here})
        targets: list[int] = []
        for start in starts:
            targets.append(self.parts.target(start, parents.get(start.parent) if start.parent else None))
            parents.setdefault(start.id, self._known.get(start.id, targets[-1]))
        return targets

    async def claim(self, wanted: Iterable[tuple[str, int, str | None]], *, of_runs: bool = False) -> dict[str, str]:
        """Makes entries for runs, each to be made in a partition, or returns those that are there; one that is as given
        is replaced. Those of what runs and schedules start (`of_runs`) are also made where memory is full."""
        script = "claim_child_places" if of_runs else "claim_places"
        homes: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for run_id, to, was in wanted:
            homes[self.parts.home(run_id)].append({"id": run_id, "to": to, **({"was": was} if was else {})})
        found: dict[str, str] = {}

        async def look(session: Session, items: list[dict[str, Any]]) -> None:
            for first in range(0, len(items), _CHUNK):
                chunk = items[first : first + _CHUNK]
                asked = {"items": chunk, "here": session.partition}
                made = await session.call(script, asked, durable=True, reads=_Texts)
                found.update(zip((item["id"] for item in chunk), made, strict=True))

        await self.parts.some(homes, look)
        return found

    # --- clearing away

    async def tidy(self) -> None:
        """Removes the entries of places where no run is any more; what can't be reached is left for the next time."""

        async def try_to(session: Session) -> None:
            try:
                await self._tidy(session)
            except StoreUnavailable as error:
                logger.debug("places of runs that partition %d has lost are left (%s)", session.partition, error)

        await self.parts.each(try_to)

    async def _tidy(self, session: Session) -> None:
        done: list[tuple[str, str]] = []
        while True:
            gone = await session.call("gone_places", {"done": done}, durable=bool(done), reads=_Pairs)
            if not gone:
                return
            homes: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
            for run_id, place in gone:
                homes[self.parts.home(run_id)].append((run_id, place))
            await self.parts.some(homes, lambda session, pairs: session.call("forget_places", pairs, durable=True))
            done = gone


class Placing:
    """Finds out where some starts, each of another id, are to be made, or have made their runs already. They are those
    of clients, or of runs and schedules (`of_runs`), which go on where memory is full."""

    def __init__(self, places: Places, starts: Iterable[tuple[Start, int]], *, of_runs: bool = False) -> None:
        self._places = places
        self._of_runs = of_runs
        self._starts = {start.id: (start, target) for start, target in starts}
        self._at: dict[str, str] = {}
        """What is known of their places: "" is the home."""
        self._turns = 0

    async def begin(self) -> None:
        """Makes the entries of those that are not to be made at the homes of their ids."""
        away = [(run_id, to, None) for run_id, (_, to) in self._starts.items() if to != self._home(run_id)]
        self._at = dict.fromkeys(self._starts, "") | (await self._claim(away) if away else {})

    async def follow(self, misplaced: Iterable[tuple[str, str]]) -> None:
        """Takes note of runs that are not where they were thought to be, as scripts say it."""
        self._turns += 1
        if self._turns > _MOST_TURNS:
            raise StoreUnavailable("where a run is kept changing while it was looked for; try again")
        wrong: list[tuple[str, int, str | None]] = []
        for run_id, place in misplaced:
            if place != self._at[run_id]:
                self._at[run_id] = place
            else:
                wrong.append((run_id, self._starts[run_id][1], place or None))
        if wrong:
            self._at.update(await self._claim(wrong))

    async def _claim(self, wanted: Iterable[tuple[str, int, str | None]]) -> dict[str, str]:
        return await self._places.claim(wanted, of_runs=self._of_runs)

    def place(self, run_id: str) -> str | None:
        """The place of a run, unless it is at its home."""
        return self._at[run_id] or None

    def partition(self, run_id: str) -> int:
        """Where it is, or is to be made."""
        return partition_of(self._at[run_id], self._home(run_id))

    async def make(self) -> dict[str, Started]:
        """Makes all runs."""
        await self.begin()
        return await self._carry_out([*self._starts])

    async def existing(self) -> dict[str, Started]:
        """What became of those that are not to be made where they should be, since they are elsewhere already."""
        found: dict[str, Started] = {}
        while elsewhere := [
            run_id for run_id, (_, to) in self._starts.items() if run_id not in found and self.partition(run_id) != to
        ]:
            done, misplaced = await self._call(elsewhere)
            found |= done
            await self.follow(misplaced)
        return found

    async def _carry_out(self, left: Sequence[str]) -> dict[str, Started]:
        found: dict[str, Started] = {}
        while left:
            done, misplaced = await self._call(left)
            found |= done
            await self.follow(misplaced)
            left = [run_id for run_id, _ in misplaced]
        return found

    async def _call(self, run_ids: Sequence[str]) -> tuple[dict[str, Started], list[tuple[str, str]]]:
        by_partition: defaultdict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for run_id in run_ids:
            partition = self.partition(run_id)
            script = "enqueue" if partition == self._starts[run_id][1] else "existing"
            by_partition[partition][script].append(run_id)
        done: dict[str, Started] = {}
        misplaced: list[tuple[str, str]] = []

        async def call(session: Session, script: str, ids: list[str]) -> None:
            asked = [ask(self._starts[run_id][0], place=self.place(run_id)) for run_id in ids]
            for run_id, answer in zip(
                ids, await session.call(script, {"starts": asked}, durable=True, reads=Answers), strict=True
            ):
                if isinstance(answer, Answer) and answer.place is not None:
                    misplaced.append((run_id, answer.place))
                else:
                    [started] = answers([self._starts[run_id][0]], [answer])
                    done[run_id] = started
                    self._places.learn(started.id, session.partition)

        async def call_all(session: Session, scripts: dict[str, list[str]]) -> None:
            for script, ids in scripts.items():
                for part in chunks([self._starts[run_id][0] for run_id in ids]):
                    await call(session, script, ids[part])

        await self._places.parts.some(by_partition, call_all)
        return done, misplaced

    def _home(self, run_id: str) -> int:
        return self._places.parts.home(run_id)
