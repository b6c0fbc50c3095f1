"""A store between a worker and the real one, which knows how the talk between them goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.stores.base import Store
from perdure.stores.exchange import Exchange, Exchanged


class ObservedStore:
    """Passes everything on to a store, and counts exchanges."""

    def __init__(self, store: Store, moved: Callable[[], None]) -> None:
        self._store = store
        self._moved = moved
        self.begun = 0
        """How many exchanges were begun."""
        self.under_way = 0
        """How many of them aren't answered yet."""
        self.active = 0
        """How many of them had something to say, or were answered with something to do."""
        self.all_said = 0
        """The number of the last exchange that only asked, all parts of the store, and after whose answer there was
        nothing more to do. Others tell of the parts alone that they were with: what a wake-up has not told of yet, or
        what they bring about elsewhere, they don't hear of."""

    async def exchange(self, exchange: Exchange) -> Exchanged:
        self.begun += 1
        number = self.begun
        self.under_way += 1
        says = bool(exchange.saves or exchange.settles or exchange.told or exchange.fires)
        self.active += says
        try:
            reply = await self._store.exchange(exchange)
        finally:
            self.under_way -= 1
            self._moved()
        if reply.claims or reply.seen or reply.due or reply.more or reply.gone:
            self.active += 1
        elif exchange.owned is not None and not says:
            self.all_said = number
        return reply

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
