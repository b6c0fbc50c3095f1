"""What a run has behind it: its checkpoints, read in pages, the signals that wait for it, and the ends of others that
it was parked for."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, TypeVar

from perdure.backoff import pauses
from perdure.errors import StoreUnavailable
from perdure.model import Arrived, Checkpoint, Ended
from perdure.stores.base import Store
from perdure.stores.exchange import PAGE, Claim

T = TypeVar("T")

logger = logging.getLogger("perdure.worker")

_LONGEST_PAUSE = 1.5


async def through_outages(read: Callable[[], Awaitable[T]]) -> T:
    """Reads for a run, for as long as it takes: a store that is away for a while is no failure of the run's."""
    tries = pauses(0.05, _LONGEST_PAUSE)
    while True:
        try:
            return await read()
        except StoreUnavailable as error:
            logger.warning("the store does not answer (%s); a run waits for what it has behind it", error)
            await asyncio.sleep(next(tries))


class History:
    """The checkpoints of a run in flight, each taken once.

    A claim brings the first page; the others are read when replay gets there, so a run with a million steps behind it
    holds a page or two of them in memory.
    """

    def __init__(self, claim: Claim, store: Store) -> None:
        self._run_id = claim.id
        self._store = store
        self._loaded = {checkpoint.key: checkpoint for checkpoint in claim.checkpoints}
        self._after = claim.checkpoints[-1].position if claim.checkpoints else 0
        self._reading: asyncio.Lock | None = None
        self.complete = not claim.more_checkpoints
        """Whether every checkpoint has been read, so that what isn't loaded doesn't exist."""

    def take(self, key: str) -> Checkpoint | None:
        """The checkpoint if it is loaded."""
        return self._loaded.pop(key, None)

    async def fetch(self, key: str) -> Checkpoint | None:
        """The checkpoint if there is one, which takes at most two reads: the next page has it when the code is as it
        was; when the code has changed since, it is looked up by its key."""
        if self._reading is None:
            self._reading = asyncio.Lock()
        async with self._reading:  # of many calls side by side one reads the page that has what the others look for
            found = self.take(key)
            if found is not None or self.complete:
                return found
            page = await through_outages(lambda: self._store.history(self._run_id, after=self._after, limit=PAGE))
            if page:
                self._after = page[-1].position
            if len(page) < PAGE:
                self.complete = True
            self._loaded.update((checkpoint.key, checkpoint) for checkpoint in page)
            found = self.take(key)
        if found is None and not self.complete:
            found = await through_outages(lambda: self._store.find(self._run_id, key))
        return found


class Inbox:
    """The signals that waited at a run when it was claimed. Each is taken once, however this run learns of it."""

    def __init__(self, claim: Claim, store: Store) -> None:
        self._run_id = claim.id
        self._store = store
        self._waiting: defaultdict[str, deque[Arrived]] = defaultdict(deque)
        self._last = 0
        self._complete = not claim.more_signals
        self._taken: set[int] = set()
        self._given_back: list[asyncio.Future[Any]] = []
        self._keep(claim.signals)

    async def take(self, name: str) -> Arrived | None:
        """The first signal of that name that isn't taken yet."""
        while self._given_back:
            await self._read_anew(self._given_back[:])
        while True:
            waiting = self._waiting[name]
            while waiting:
                signal = waiting.popleft()
                if self.accept(signal):
                    return signal
            if self._complete:
                return None
            page = await through_outages(lambda: self._store.signals(self._run_id, after=self._last, limit=PAGE))
            self._complete = len(page) < PAGE
            self._keep(page)

    def accept(self, signal: Arrived) -> bool:
        """Takes a signal that a watch saw; False when it was taken already."""
        if signal.position in self._taken:
            return False
        self._taken.add(signal.position)
        return True

    def release(self, signal: Arrived) -> None:
        """Lets a signal be taken again that was accepted, and came to nobody."""
        self._taken.discard(signal.position)
        self._waiting[signal.name].appendleft(signal)

    def give_back(self, position: int | None, saving: asyncio.Future[Any]) -> None:
        """A signal waits in the store again, as soon as `saving` is done."""
        if position is not None:
            self._taken.discard(position)
        self._given_back.append(saving)

    async def _read_anew(self, saving: list[asyncio.Future[Any]]) -> None:
        """Those that were given back have their places among the others."""
        await asyncio.gather(*saving)
        self._given_back = [each for each in self._given_back if each not in saving]
        self._waiting.clear()
        self._last, self._complete = 0, False

    def _keep(self, page: list[Arrived]) -> None:
        for signal in page:
            self._waiting[signal.name].append(signal)
            self._last = signal.position


class Ends:
    """What became of the runs that a run was parked for. A claim tells of a page of them; the others are asked for when
    the code gets there, a page at a time."""

    def __init__(self, claim: Claim, store: Store) -> None:
        self._store = store
        self._ended = {ended.id: ended for ended in claim.ended}
        self._missing = set(claim.missing)
        self._gone: set[str] = set()
        self._unread = dict.fromkeys(claim.unread)
        self._reading: asyncio.Lock | None = None

    def unread(self, run_id: str) -> bool:
        """Whether the store has to be asked for that run."""
        return run_id in self._unread

    def of(self, key: str, run_id: str) -> tuple[Ended | None, bool]:
        """How a run ended that the wait of a key is for, and whether there is no such run, as far as is known."""
        return self._ended.get(run_id), key in self._missing or run_id in self._gone

    async def read(self, run_id: str) -> None:
        """Asks for that run, and for some that others may ask for."""
        if self._reading is None:
            self._reading = asyncio.Lock()
        async with self._reading:  # of many calls side by side one reads the page that has what the others look for
            if not self.unread(run_id):
                return
            page = [run_id, *islice((each for each in self._unread if each != run_id), PAGE - 1)]
            ended = await through_outages(lambda: self._store.ended(page))
            self._ended.update((each.id, each) for each in ended)
            others = [each for each in page if each not in self._ended]
            if others:
                self._gone.update(await through_outages(lambda: self._store.missing(others)))
            for each in page:
                del self._unread[each]
