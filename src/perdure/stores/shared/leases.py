"""When leases that ended say nothing of their workers."""

from __future__ import annotations

from perdure.model import Millis

HELD_UP: Millis = 500
"""Milliseconds from which on a call that had to wait may find leases ended that nobody could renew meanwhile."""


def is_late(asked: Millis | None, now: Millis) -> bool:
    """Whether a store came to a call too late, by its own clock; `asked` is when it was made, None if that is not to
    be looked at."""
    return asked is not None and now - asked >= HELD_UP
