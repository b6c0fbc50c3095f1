"""The slots of a worker: how many runs it executes at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

MOST_RESTING = 1000
"""Runs that may be in memory beside those that have a slot: what they take of it must have an end."""


class Slots:
    """A run that is claimed has a slot until it is over. One that is kept in memory and only waits leaves its slot to
    others meanwhile, and takes one again before its next step, before any new run gets it."""

    def __init__(self, limit: int, freed: Callable[[], None]) -> None:
        self._limit = limit
        self._freed = freed
        self._runs = 0
        self._resting: set[int] = set()
        self._returning: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def free(self) -> int:
        """How many more runs may be claimed."""
        return max(0, self._limit - self._taken - len(self._returning))

    @property
    def _taken(self) -> int:
        return self._runs - len(self._resting)

    def enter(self) -> None:
        """A run was claimed."""
        self._runs += 1

    def leave(self, token: int) -> None:
        """A run is over."""
        self._runs -= 1
        self._resting.discard(token)
        self._pass_on()
        self._freed()

    def rest(self, token: int) -> None:
        """A run only waits: others have its slot until `take` gives it one again."""
        if token not in self._resting and len(self._resting) < MOST_RESTING:
            self._resting.add(token)
            self._pass_on()
            self._freed()

    def rests(self, token: int) -> bool:
        """Whether a run has left its slot to others."""
        return token in self._resting

    async def take(self, token: int) -> None:
        """Returns when a run that rests has a slot again."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returning.append((token, turn))
        self._pass_on()
        await turn

    def _pass_on(self) -> None:
        while self._returning and (self._taken < self._limit or self._returning[0][0] not in self._resting):
            token, turn = self._returning.popleft()
            if not turn.done():
                self._resting.discard(token)
                turn.set_result(None)
