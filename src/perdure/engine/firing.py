"""What a worker makes of the schedules that it is told are due."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from perdure.cron import due_fires
from perdure.errors import PerdureError
from perdure.model import Fire, Millis, ScheduleRecord

logger = logging.getLogger("perdure.worker")

_AGAIN = 60.0
"""Seconds until a schedule that could not be read is looked at again: it may have been changed."""


class Firing:
    """Turns schedules into fires. It remembers those that can't be read here (they were made by newer code, or name a
    time zone that this machine does not know), so that they neither fill the log nor stand in the way of others."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def skips(self) -> list[str]:
        """The names of schedules that need not be told of for now."""
        if not self._until:
            return []
        now = self._now()
        self._until = {name: until for name, until in self._until.items() if until > now}
        return list(self._until)

    def fires(self, due: Sequence[ScheduleRecord], now: Millis) -> list[Fire]:
        """What is to be done about them; those that can't be read are among `skips` from now on."""
        return [fire for record in due for fire in self._fires(record, now)]

    def _fires(self, record: ScheduleRecord, now: Millis) -> list[Fire]:
        name = record.schedule.name
        if record.broken is not None:
            self._skip(name, record.broken, None)
            return []
        try:
            fires = due_fires(record, now)
        except Exception as error:  # whatever it is: the others must go on
            self._skip(name, str(error), None if isinstance(error, PerdureError) else error)
            return []
        self._said.pop(name, None)
        return fires

    def _skip(self, name: str, why: str, error: Exception | None) -> None:
        self._until[name] = self._now() + _AGAIN
        if self._said.get(name) != why:
            self._said[name] = why
            logger.error("schedule %s can't be read here (%s): this worker does not fire it", name, why, exc_info=error)
