"""Stores that fail: a wrapper that loses replies, and one that can be switched off."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

from perdure.errors import StoreUnavailable
from perdure.stores.base import Keeper, Store

_NO_VERBS = ("open", "close", "migrate", "keeper", "parts", "beside")
"""What is handed on as it is: the life of a store, and its properties."""


class Wrapper:
    """A store that hands every verb on to another one, through `around`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.store, verb)
        if verb in _NO_VERBS:
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[verb] += 1
            return await self.around(verb, lambda: method(*args, **kwargs))

        return call

    async def around(self, verb: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Makes the call; what goes wrong, goes wrong here."""
        return await call()


class Lossy(Wrapper):
    """Loses, at random, replies to calls that took effect, and calls that then took none."""

    VERBS = ("exchange", "enqueue", "signal", "register", "reclaim", "retire", "cancel")

    def __init__(self, store: Store, seed: int, share: float = 0.25) -> None:
        super().__init__(store)
        self.lost: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._share = share

    async def around(self, verb: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if verb not in self.VERBS or self._random.random() >= self._share:
            return await call()
        self.lost[verb] += 1
        if self._random.random() < 0.7:
            await call()
        raise StoreUnavailable("the connection was lost")


class Slow(Wrapper):
    """Keeps replies that bring claims back until it is told to go on: the store has done it, nobody has heard yet."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.kept_back = asyncio.Event()
        self.go_on = asyncio.Event()

    async def around(self, verb: str, call: Callable[[], Awaitable[Any]]) -> Any:
        reply = await call()
        if verb == "exchange" and reply.claims:
            self.kept_back.set()
            await self.go_on.wait()
        return reply


class Switched(Wrapper):
    """Can be switched off: then every call fails, those that keep a lease as well."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.on = True
        self.dead_verbs: set[str] = set()
        """Verbs that fail though it is on."""
        self.failed: Counter[str] = Counter()
        self.back: dict[str, float] = {}
        """By verb, how long after the store was back the first call succeeded."""
        self._since = 0.0

    def off(self) -> None:
        self.on = False
        self.failed.clear()

    def again(self) -> None:
        self.on = True
        self.back.clear()
        self._since = time.monotonic()

    def keeper(self, worker: int, lease: int) -> Keeper:
        return cast(Keeper, SwitchedKeeper(self, self.store.keeper(worker, lease)))

    async def around(self, verb: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.check(verb)
        result = await call()
        self.succeeded(verb)
        return result

    def check(self, verb: str) -> None:
        if not self.on or verb in self.dead_verbs:
            self.failed[verb] += 1
            raise StoreUnavailable("the store is switched off")

    def succeeded(self, verb: str) -> None:
        if verb not in self.back:
            self.back[verb] = time.monotonic() - self._since


class SwitchedKeeper:
    """The keeper of a lease in a store that can be switched off."""

    def __init__(self, switch: Switched, keeper: Keeper) -> None:
        self._switch = switch
        self._keeper = keeper

    def renew(self) -> bool:
        self._switch.check("renew")
        renewed = self._keeper.renew()
        self._switch.succeeded("renew")
        return renewed

    def close(self) -> None:
        self._keeper.close()
