"""How limits and rates are written ("100/min"), and what they can be."""

from __future__ import annotations

import re

from perdure.errors import InvalidInput
from perdure.model import Limits, Rate, Scope, ScopeKind

_PERIODS = {"s": 1_000, "min": 60_000, "h": 3_600_000, "day": 86_400_000}
_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "minute", "minutes"), "min"),
    **dict.fromkeys(("h", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "day"),
}
_RATE = re.compile(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,6})?\s*([a-z]+)\s*", re.IGNORECASE)
_MOST = 2**31 - 1
_FROM_ONE = "from 1 on"


def parse_rate(text: str, burst: int | None = None) -> Rate:
    """A rate such as "100/min", "5/s" or "1000/2h". `burst` is how many may begin at once after a quiet time; without
    one it is 1, which spaces them evenly.

    Raises `InvalidInput` for what is no rate, a rate of nothing, or a burst below 1.
    """
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    unit = None if found is None else _UNITS.get(found[3].lower())
    if found is None or unit is None or not int(found[1]) or not int(found[2] or 1):
        raise InvalidInput(
            f"{text!r} is no rate; write a count and a period, such as 100/min, 5/s, 1000/2h (units: s min h day)"
        )
    if burst is not None and not _is_count(burst):
        raise InvalidInput(f"a burst is a whole number {_from_to(burst)}, not {burst!r}")
    return Rate(int(found[1]), _PERIODS[unit] * int(found[2] or 1), burst or 1)


def check_count(count: int, what: str) -> int:
    """A whole number from 1 on, or `InvalidInput`."""
    if not _is_count(count):
        raise InvalidInput(f"{what} is a whole number {_from_to(count)}, not {count!r}")
    return count


def check_limit(running: int, what: str) -> int:
    """A number of runs at a time, or `InvalidInput`."""
    if not _is_count(running):
        which = _from_to(running)
        hint = "" if which != _FROM_ONE else "; to let nothing run, pause instead"
        raise InvalidInput(f"{what} is a whole number {which}, not {running!r}{hint}")
    return running


def show_rate(rate: Rate) -> str:
    """A rate as it is written, with its burst. (A store may keep one whose period is no whole number of seconds.)"""
    burst = f", burst {rate.burst}" if rate.burst > 1 else ""
    units = [unit for unit, size in _PERIODS.items() if rate.period % size == 0]
    if not units:
        return f"{rate.count} in {rate.period / 1000:g} s{burst}"
    times = rate.period // _PERIODS[units[-1]]
    return f"{rate.count}/{'' if times == 1 else times}{units[-1]}{burst}"


def show_limits(limits: Limits) -> str:
    """Limits in words."""
    parts: list[str] = []
    if limits.running is not None:
        parts.append(f"{limits.running} at a time")
    if limits.rate is not None:
        parts.append(show_rate(limits.rate))
    return ", ".join(parts) or "no limit"


def show_scope(scope: Scope) -> str:
    """A scope in words."""
    return "the whole store" if scope.kind is ScopeKind.NAMESPACE else f"{scope.kind} {scope.name}"


def _from_to(value: object) -> str:
    return f"from 1 to {_MOST:,}" if isinstance(value, int) and value > _MOST else _FROM_ONE


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST
