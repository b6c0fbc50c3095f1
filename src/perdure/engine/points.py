"""Points in the life of a run at which a test may watch, wait, or let the worker die."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class Point(StrEnum):
    """Where it is."""

    BEFORE_STEP = "before step"
    AFTER_EFFECT = "after effect, before checkpoint"
    AFTER_CHECKPOINT = "after checkpoint"
    PARKED = "parked"
    BEFORE_SETTLE = "before settle"


Tap: TypeAlias = Callable[[Point, str, str], None]
"""Called with the point, the run's id and the key of the step (or wait); may raise `Halt` after killing the worker."""
