"""When a worker looks for dead ones, and takes back what they held."""

from __future__ import annotations

import asyncio
import random
import time

from perdure.clock import Clock
from perdure.engine.leases import LeaseThread
from perdure.model import Millis
from perdure.stores.base import Reclaimed, Store

PAUSE = 0.7
"""Seconds, at most, from a look that took something, or could not tell, to the next; a random part is taken off."""

LONGEST_PAUSE = 3.0
"""Seconds, at most, between two looks: of a worker that began since the last one, with a shorter lease, nothing is
known."""

SPREAD = 0.2
"""Seconds within which all look who know of the end of a lease: the first one takes what there is."""


class Reclaiming:
    """Looks for dead workers, and knows when to look again.

    The store says when the next lease ends. Workers that live renew theirs long before, so mostly nobody needs to look;
    one that dies is found when its lease ends.
    """

    def __init__(self, store: Store, clock: Clock, lease: Millis) -> None:
        self._store = store
        self._clock = clock
        # Its own lease, and those like it, are renewed in this time: their ends are never what it waits for.
        self._longest = max(PAUSE, min(lease / 1000 / 3, LONGEST_PAUSE))
        self._found: Reclaimed | None = None
        """What the last look told; None when there was none, or it failed."""
        self._held_up = False
        """Whether the last look failed, or took long: those who live seem dead then."""

    def pause(self) -> float:
        """Seconds until the next look."""
        found = self._found
        if found is not None and not (found.count or found.late):
            longest = self._longest * random.uniform(0.9, 1.0)
            if found.next_at is None:
                return longest
            left = (found.next_at - self._clock.now()) / 1000
            if left > 0:
                return min(longest, left + random.uniform(0, SPREAD))
        return PAUSE * random.uniform(0.7, 1.0)

    async def look(self, lease: LeaseThread | None) -> int:
        """Takes back what dead workers held; returns how many runs.

        Who could not reach the store, or stood still, may be the first one back of many: it renews its own lease, and
        leaves the others the time until the next look to do the same. So does a store that comes to this late, unless
        the last look was late as well: one that is always slow must not keep those runs for ever.
        """
        found, self._found = self._found, None
        if lease is not None and (self._held_up or not lease.certain):
            renewed, _ = await asyncio.wait([lease.renewed()], timeout=PAUSE)
            self._held_up = not renewed
            return 0
        self._held_up = True
        began = time.monotonic()
        self._found = await self._store.reclaim(None if found is not None and found.late else self._clock.now())
        self._held_up = time.monotonic() - began >= PAUSE
        return self._found.count
