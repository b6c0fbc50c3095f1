"""How long to wait between tries of what does not work just now."""

from __future__ import annotations

import random
from collections.abc import Iterator


def pauses(first: float, longest: float) -> Iterator[float]:
    """Seconds to wait before each next try, without end: twice as long each time, at most `longest`. Up to half of a
    pause is left to chance, so that those who failed together don't come back together."""
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, longest)
