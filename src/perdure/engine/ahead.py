"""Runs that a worker claims before it has a slot for them, so that it has something to do while an exchange is under
way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from perdure.stores.exchange import Cancelling, Claim, Seen

MOST_IN_HAND = 16
"""Runs that a worker may have, with those that it executes, for one to be claimed ahead: one that executes more at once
has enough to do as it is."""

_SOON = 0.01
"""Seconds within which a run that is claimed ahead is expected to begin."""

PATIENCE = 0.05
"""Seconds after which they are handed back, for others to begin, when not one of them could begin in that time."""

_SMOOTHING = 0.25
"""The weight of the last exchange with ends in the pace of many."""


class Waiting:
    """A run that was claimed ahead, as the exchange loop sees its owner."""

    def __init__(self, claim: Claim, drop: Callable[[Waiting], None]) -> None:
        self.claim = claim
        self.ref, self.token = claim.ref, claim.token
        self._drop = drop

    def lost(self) -> None:
        self._drop(self)

    def cancel(self, cancelling: Cancelling) -> None:
        if self.claim.cancelling is None:
            self.claim.cancelling = cancelling

    def saw(self, seen: Seen) -> None:
        """It watches nothing yet."""


class Ahead:
    """The runs that were claimed ahead, in their order, and how many they may be.

    That many may be as end within a hundredth of a second, by the pace of the last exchanges, and only while the store
    has more than there are slots, so that nobody waits for them in vain. Where it turns out wrong, because a run takes
    longer than those before it, the others are handed back.
    """

    def __init__(self, most: int, hand_back: Callable[[Claim], None], *, time: Callable[[], float]) -> None:
        self._limit = most
        self._hand_back = hand_back
        self._time = time
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Waiting] = deque()
        self._most = 0
        self._pace = 0.0
        self._ended = self._time()
        self._first: Waiting | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def room(self) -> int:
        """How many runs more may be claimed ahead; negative when there are more than that already."""
        return self._most - len(self._waiting)

    def answered(self, ended: int, more: bool) -> None:
        """An exchange that told of so many ends was answered just now: the store has `more` runs, or not."""
        if ended:
            now = self._time()
            took, self._ended = max(now - self._ended, 1e-6), now
            self._pace += _SMOOTHING * (ended / took - self._pace)
        self._most = min(self._limit, round(self._pace * _SOON)) if more else 0

    def put(self, claim: Claim) -> Waiting:
        """Keeps a run until a slot is free."""
        waiting = Waiting(claim, self._waiting.remove)
        self._waiting.append(waiting)
        if self._timer is None:
            self._watch()
        return waiting

    def take(self) -> Claim:
        """The first one; it begins now."""
        return self._waiting.popleft().claim

    def clear(self) -> None:
        """Hands all of them back; none is claimed ahead until runs end fast again."""
        self._most, self._pace = 0, 0.0
        while self._waiting:
            self._hand_back(self.take())

    def drop(self) -> None:
        """Forgets all of them: they are others' now."""
        self._waiting.clear()

    def _watch(self) -> None:
        self._first = self._waiting[0]
        self._timer = self._loop.call_later(PATIENCE, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiting and self._waiting[0] is self._first:
            self.clear()
        elif self._waiting:
            self._watch()

    def close(self) -> None:
        """Ends the watch over them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
