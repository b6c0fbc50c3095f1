"""The order in which outcomes arrive at code that waits for several at once."""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections.abc import Callable

from perdure.model import Millis

NEW = sys.maxsize
"""In place of a position: of what has just come about, after all that was kept in the same millisecond."""

TURNS = 10
"""Turns of the event loop that code has to react to one outcome before the next one arrives."""


class Turns:
    """Lets outcomes that lie side by side arrive one at a time, each with time for the code to react: at first as on
    replay, so that `asyncio.wait`, `as_completed` and the like decide as they did before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, beside: Callable[[], bool]) -> None:
        """`beside` says whether something else is in flight, of which an outcome may follow."""
        self._loop = loop
        self._beside = beside
        self._arriving: list[tuple[Millis, int, int, asyncio.Future[None]]] = []
        self._count = 0
        self.going = False
        """Whether an outcome is on its way, so that others have to queue."""

    async def take(self, when: Millis, position: int) -> None:
        """Waits for the turn of an outcome of that time and position."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._count += 1
        heapq.heappush(self._arriving, (when, position, self._count, future))
        if not self.going:
            self.going = True
            self._loop.call_soon(self._next, TURNS if self._beside() and position != NEW else 0)
        await future

    def _next(self, loops: int) -> None:
        if loops:
            self._loop.call_soon(self._next, loops - 1)
        elif self._arriving:
            future = heapq.heappop(self._arriving)[-1]
            if not future.done():
                future.set_result(None)
            self._loop.call_soon(self._next, TURNS if self._arriving or self._beside() else 0)
        else:
            self.going = False
