"""The waits of runs that are kept in memory, which a worker asks the store for."""

from __future__ import annotations

from itertools import islice

from perdure.stores.exchange import Watch

MOST_WATCHES = 200
"""How many waits one exchange asks for that were asked for before: they take turns."""
MOST_NEW = 500
"""How many it asks for that were not: the others are asked for with the next one, at once."""


class Watches:
    """Which waits each exchange asks for: the new ones, and of the others those whose turn it is."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], Watch] = {}
        """In the order of their turns."""
        self._new: dict[tuple[int, str], Watch] = {}
        self._in_round = 0
        """How many are left to ask for since something may have changed in the store."""

    def __len__(self) -> int:
        return len(self._known) + len(self._new)

    def add(self, watch: Watch) -> bool:
        """Has it asked for from now on; tells whether it is new."""
        key = watch.token, watch.wait.key
        if key in self._known or key in self._new:
            return False
        self._new[key] = watch
        return True

    def remove(self, token: int, key: str) -> None:
        """It is not asked for any more."""
        self._known.pop((token, key), None)
        self._new.pop((token, key), None)

    def begin_round(self) -> None:
        """Something may have changed in the store: each of them is to be asked for."""
        self._in_round = len(self._known)

    @property
    def in_round(self) -> bool:
        """Whether some are still to be asked for."""
        return self._in_round > 0

    @property
    def has_new(self) -> bool:
        """Whether some were never asked for."""
        return bool(self._new)

    def next(self) -> list[Watch]:
        """Those that the next exchange asks for."""
        if not self:
            self._in_round = 0
            return []
        turn = list(islice(self._known, MOST_WATCHES))
        for key in turn:
            self._known[key] = self._known.pop(key)
        self._in_round = min(self._in_round, len(self._known)) - len(turn)
        new = list(islice(self._new, MOST_NEW))
        for key in new:
            self._known[key] = self._new.pop(key)
        return [self._known[key] for key in (*turn, *new)]
