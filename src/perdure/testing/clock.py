"""A clock that stands still until somebody moves it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from datetime import UTC, datetime

from perdure.clock import Alarm, epoch_millis, moment
from perdure.model import Millis


class VirtualClock:
    """The time of a store and of the workers on it, which moves when told to, and only forward.

    It begins at `start`, or now. A store takes it with `now=clock.now`.

        clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
        store = open_store("sqlite://", now=clock.now)
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = epoch_millis(datetime.now(UTC) if start is None else start, "the start of a clock")
        self._alarms: list[VirtualAlarm] = []
        self._made = 0
        self.stirred: Callable[[], None] | None = None
        """Called when there is a new alarm."""

    @property
    def time(self) -> datetime:
        """What time it is."""
        return moment(self._now)

    @property
    def next_at(self) -> Millis | None:
        """When the next alarm is due; None when there is none."""
        while self._alarms and self._alarms[0].cancelled:
            heapq.heappop(self._alarms)
        return self._alarms[0].at if self._alarms else None

    def move_to(self, at: Millis) -> None:
        """Moves on to `at`, and rings the alarms that are due by then, in order."""
        self._now = max(self._now, at)
        self._ring()

    # --- what a worker asks of a clock

    def saw(self, now: Millis) -> None:
        """Needs not be told: the store reads this clock."""

    def now(self) -> Millis:
        """What time it is, in milliseconds since the epoch."""
        return self._now

    def steady(self) -> Millis:
        """The same: it never jumps back."""
        return self._now

    def call_at(self, at: Millis, callback: Callable[[], None]) -> Alarm:
        """Has `callback` called when the clock gets to `at`, in milliseconds since the epoch; soon if it has."""
        self._made += 1
        alarm = VirtualAlarm(at, self._made, callback)
        heapq.heappush(self._alarms, alarm)
        if at <= self._now:
            asyncio.get_running_loop().call_soon(self._ring)
        if self.stirred is not None:
            self.stirred()
        return alarm

    def _ring(self) -> None:
        while (at := self.next_at) is not None and at <= self._now:
            heapq.heappop(self._alarms).callback()


class VirtualAlarm:
    """A callback that is due when the clock is moved that far. Alarms of one time ring in the order of their making."""

    __slots__ = ("_number", "at", "callback", "cancelled")

    def __init__(self, at: Millis, number: int, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False
        self._number = number

    def cancel(self) -> None:
        self.cancelled = True

    def __lt__(self, other: VirtualAlarm) -> bool:
        return (self.at, self._number) < (other.at, other._number)
