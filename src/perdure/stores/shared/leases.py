"""When leases that ended say nothing of their workers."""

from __future__ import annotations

import time
from collections.abc import Awaitable

HELD_UP = 0.5
"""Seconds from which on who waited for an answer may find leases ended that nobody could renew meanwhile."""


async def was_held_up(question: Awaitable[object]) -> bool:
    """Whether the answer took long. A server that hung does what lay with it as soon as it goes on: taking back runs
    must not be among that, before those who live have renewed. So it is asked something else first."""
    asked = time.monotonic()
    await question
    return time.monotonic() - asked >= HELD_UP
