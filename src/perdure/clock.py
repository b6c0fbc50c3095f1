"""The store's time as a process knows it. Nothing in Perdure asks the machine what time it is."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from perdure.errors import InvalidInput
from perdure.model import Millis

_LATEST = 1000
"""Milliseconds by which a reply may be late; a time further back tells of a store whose clock was put back."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Alarm(Protocol):
    """A callback that is due some time, until cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Tells the store's time to a worker, and calls back when a time has come."""

    def saw(self, now: Millis) -> None:
        """Learns what the store said the time is."""
        ...

    def now(self) -> Millis: ...

    def steady(self) -> Millis:
        """The time of a clock that is nobody's: it never jumps, and goes on while the process or the machine stands
        still. Of use only to tell how much time has passed."""
        ...

    def call_at(self, at: Millis, callback: Callable[[], None]) -> Alarm:
        """Calls back in the running event loop, at `at` or a little later."""
        ...


class StoreClock:
    """The time that the store told last, plus what has passed since then on a clock that never jumps.

    It is late by the way of the reply, never early, so that a timer that fires by it is due by the store's clock too.
    Where a reply is later than the one before, it stands still for that long and does not go back: what follows on
    something never began before it.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        self._told: Millis = 0

    def saw(self, now: Millis) -> None:
        self._ahead = now - time.monotonic() * 1000
        if self._told - now > _LATEST:
            self._told = 0

    def now(self) -> Millis:
        self._told = max(self._told, int(time.monotonic() * 1000 + self._ahead))
        return self._told

    def steady(self) -> Millis:
        return int(passed() * 1000)

    def call_at(self, at: Millis, callback: Callable[[], None]) -> Alarm:
        return asyncio.get_running_loop().call_later(max(0, at - self.now()) / 1000, callback)


def passed() -> float:
    """Seconds of a clock that goes on while the process is stopped, and while the machine sleeps, where the system has
    such a clock."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def millis(duration: timedelta | float, what: str) -> Millis:
    """A duration (a timedelta, or seconds) in milliseconds, rounded up; `InvalidInput` when negative or no number."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{what} must be a timedelta or a number of seconds, not {type(duration).__name__}")
    if not 0 <= seconds <= 3_200_000_000:  # a hundred years; this is false for NaN too
        raise InvalidInput(f"{what} must lie between 0 and 100 years, not {duration}")
    return -int(-seconds * 1000 // 1)


def time_limit(duration: timedelta | float | None, what: str = "timeout") -> Millis | None:
    """The time that something may take, in milliseconds; None for no limit; `InvalidInput` when it is no time."""
    limit = None if duration is None else millis(duration, what)
    if limit == 0:
        raise InvalidInput(f"{what} must be longer than nothing; leave it out for no limit")
    return limit


def epoch_millis(moment: datetime, what: str) -> Millis:
    """An aware datetime in milliseconds since the epoch, rounded up; `InvalidInput` when it has no time zone, or is too
    far away."""
    if not isinstance(moment, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{what} must be a datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise InvalidInput(
            f"{what} has no time zone: write datetime(..., tzinfo=UTC) or use a ZoneInfo, so that every worker reads"
            " the same moment"
        )
    if not 1970 <= moment.year < 3000:
        raise InvalidInput(f"{what} must lie between the years 1970 and 3000, not in {moment.year}")
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def moment(at: Millis) -> datetime:
    """Milliseconds since the epoch as an aware datetime in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC)
