"""Rates as the plain model has them: every start is remembered, and every window looked at."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.model import Millis, Rate, Scope


class Rates:
    def __init__(self) -> None:
        self._rates: dict[Scope, Rate] = {}
        self._begun: dict[Scope, list[Millis]] = {}

    def set(self, scope: Scope, rate: Rate | None) -> bool:
        """Sets what holds; returns whether it differs. What began counts for as long as there is a rate."""
        before = self._rates.pop(scope, None)
        if rate is not None:
            self._rates[scope] = rate
        if rate is None or before is None:
            self._begun[scope] = []
        else:
            assert rate == before, "the model knows no other rate in the place of one"
        return rate != before

    def any(self) -> bool:
        return bool(self._rates)

    def begin(self, scopes: Iterable[Scope], now: Millis) -> None:
        """A run begins; not before those that began earlier, if the clock was set back."""
        for scope in scopes:
            if scope in self._rates:
                begun = self._begun[scope]
                begun.append(max([now, *begun[-1:]]))

    def opens_at(self, scope: Scope, now: Millis, behind: int = 0) -> Millis:
        """When the next run may begin so that in no window (of length t, to which both ends belong) more than
        `burst + t * count / period` do, behind so many that begin as soon as they may; `now` if it may at once."""
        rate = self._rates.get(scope)
        if rate is None:
            return now
        begun = self._begun[scope]
        moment = max([now, *begun[-1:]])
        over = [(at, len(begun) - n + behind + 1 - rate.burst) for n, at in enumerate([*begun, moment])]
        opens = max([now, *(at - (-more * rate.period // rate.count) for at, more in over if more > 0)])
        # If the clock was set back, what begins now counts as if it were not.
        return now if opens <= moment else opens
