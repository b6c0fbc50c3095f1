"""The tasks that code of a run has made beside the run's own."""

from __future__ import annotations

import asyncio
from typing import Any

_TURNS_OF_CANCELLING = 5
"""Turns of the event loop in which a cancellation gets from one task to those that it waits for."""


class Spawned:
    """Those of one run that are not done: adopted when its code makes them, tracked when they call steps or waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._adopted: dict[asyncio.Task[Any], None] = {}
        self._tracked: dict[asyncio.Task[Any], None] = {}
        self._orphaned = False

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """All of them, what calls steps and waits first: it is within what does not."""
        return [*self._tracked, *(task for task in self._adopted if task not in self._tracked)]

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Learns of a task that the workflow's code has made."""
        if not task.done():
            self._adopted[task] = None
            task.add_done_callback(self._disown)

    def _disown(self, task: asyncio.Task[Any]) -> None:
        self._adopted.pop(task, None)

    def track(self, task: asyncio.Task[Any]) -> None:
        """Learns of a task that calls a step or a wait, wherever it was made."""
        if task not in self._tracked:
            self._tracked[task] = None
            task.add_done_callback(self._untrack)

    def _untrack(self, task: asyncio.Task[Any]) -> None:
        self._tracked.pop(task, None)
        if self._orphaned and not task.cancelled():
            task.exception()

    def orphan(self) -> None:
        """The run has ended, or goes on elsewhere or later: nobody asks any more what they come to."""
        self._orphaned = True

    def cancel(self, reason: str | None = None) -> None:
        """Cancels those that nobody else does.

        Groups and the like cancel what they wait for, one level in a turn or two, and a task that is cancelled once
        more is interrupted in its cleaning up: so one is cancelled from here, the oldest, when for some turns no other
        one has been, and the others get as many turns again. What the code makes from now on is a part of its cleaning
        up.
        """
        self._cancel_oldest([*{**self._adopted, **self._tracked}], reason, _TURNS_OF_CANCELLING)

    def _cancel_oldest(self, among: list[asyncio.Task[Any]], reason: str | None, turns: int) -> None:
        uncancelled = [each for each in among if not (each.done() or each.cancelling())]
        if not uncancelled:
            return
        if len(uncancelled) < len(among):
            turns = _TURNS_OF_CANCELLING
        elif turns == 0:
            uncancelled[0].cancel(reason)
            turns = _TURNS_OF_CANCELLING
        self._loop.call_soon(self._cancel_oldest, uncancelled, reason, turns - 1)
