"""How rates and limits are written: "100/min", and what a number may be."""

from __future__ import annotations

import re

from perdure.errors import InvalidInput
from perdure.model import Rate

_PERIODS = {"s": 1_000, "sec": 1_000, "second": 1_000, "min": 60_000, "minute": 60_000}
_PERIODS |= {"h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000}
_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,6})?\s*([a-z]+?)s?\s*", re.IGNORECASE)


def parse_rate(text: str, burst: int | None = None) -> Rate:
    """A rate such as "100/min", "5/s" or "1000/2h". `burst` is how many may begin at once after a quiet time; without
    one it is 1, which spaces them evenly.

    Raises `InvalidInput` for what is no rate, a rate of nothing, or a burst below 1.
    """
    found = _RATE.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    unit = None if found is None else _PERIODS.get(found[3].lower()) or _PERIODS.get(found[3].lower() + "s")
    if found is None or unit is None or int(found[1]) < 1 or int(found[2] or 1) < 1:
        raise InvalidInput(f"{text!r} is no rate; write a count and a period: 100/min, 5/s, 1000/2h (units: s min h day)")
    if burst is not None and (not isinstance(burst, int) or isinstance(burst, bool) or burst < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"a burst is a whole number from 1 on, not {burst!r}")
    return Rate(int(found[1]), unit * int(found[2] or 1), burst or 1)


def check_limit(running: int, what: str) -> int:
    """A number of runs at a time, or `InvalidInput`."""
    if not isinstance(running, int) or isinstance(running, bool) or not 1 <= running < 2**31:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{what} is a whole number from 1 on, not {running!r}; to let nothing run, pause instead")
    return running


def show_rate(rate: Rate) -> str:
    """A rate as it is written."""
    unit, size = max(
        ((name, size) for name, size in (("s", 1_000), ("min", 60_000), ("h", 3_600_000), ("day", 86_400_000))
         if rate.period % size == 0),
        key=lambda entry: entry[1],
    )
    times = rate.period // size
    return f"{rate.count}/{'' if times == 1 else times}{unit}" + (f", burst {rate.burst}" if rate.burst > 1 else "")
