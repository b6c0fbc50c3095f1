"""When leases that ended say nothing of their workers."""

from __future__ import annotations

import time
from collections.abc import Awaitable

HELD_UP = 0.5
"""Seconds from which on who waited for an answer may find leases ended that nobody could renew meanwhile."""


class Promptness:
    """Whether a server hung until just now.

    It does what lay with it as soon as it goes on: taking back runs must not be among that, before those who live have
    renewed. So it is asked something else first. One that is late again, the next time, is merely slow.
    """

    def __init__(self) -> None:
        self._late = False

    async def hung(self, question: Awaitable[object]) -> bool:
        """Waits for an answer; whether it was late, and the one before was not."""
        asked, before = time.monotonic(), self._late
        await question
        self._late = time.monotonic() - asked >= HELD_UP
        return self._late and not before
