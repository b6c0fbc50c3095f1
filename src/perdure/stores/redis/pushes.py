"""Runs that are pushed to a worker which waits for some: they come by message, claimed already.

The next exchange of the worker, if it has nothing to say, is answered with them on the spot. What is lost on the way
comes with the reply to the exchange after that: the store brings a push again until it is told that it was got.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from perdure.model import Millis
from perdure.stores.base import Subscription
from perdure.stores.exchange import Claim, Exchange, Exchanged
from perdure.stores.redis.claims import Kind, ShownClaim, claim_of
from perdure.stores.redis.listen import ChannelSubscription, subscribe
from perdure.stores.redis.url import Location

_REMEMBERED = 1024
"""How many pushes are remembered, for messages that come when the reply to an exchange has brought them."""


VERSION = 1


class Push(Struct):
    """A claim that nobody came for; `v` is `VERSION`, or that of other code."""

    v: int
    push: int
    serial: int
    claim: ShownClaim
    kinds: list[Kind]


_Pushes = msgspec.msgpack.Decoder(Push)


class Hand:
    """What one incarnation was given. It belongs to the event loop of its worker."""

    def __init__(self, worker: int, wake: Callable[[], None]) -> None:
        self.subscription: ChannelSubscription | None = None
        self.hinted = True
        """Whether there may be more to be found than pushes."""
        self._worker = worker
        self._wake = wake
        self._claims: list[Claim] = []
        self._got: list[int] = []
        self._known: deque[int] = deque(maxlen=_REMEMBERED)
        self._last: Exchanged | None = None
        self._last_at = 0.0
        self._busy = False
        """Whether nothing can have been pushed since the last exchange, which left it no free slot."""

    def receive(self, message: bytes) -> None:
        """Takes a message. What other code has sent comes once more with the next exchange, in our own words."""
        try:
            push = _Pushes.decode(message)
        except msgspec.MsgspecError:
            push = None
        if push is None or push.v != VERSION:
            self.hinted = True
            self._wake()
        elif self._take(push):
            self._wake()

    def answer(self, said: Exchange, now: Millis | None) -> Exchanged | None:
        """The reply to one that only asks for runs, when there are pushes; None where the store is to be asked."""
        last = self._last
        if not self._claims or last is None:
            return None
        if (
            said.saves
            or said.settles
            or said.told
            or said.fires
            or said.watches
            or said.owned is not None
            or said.repeated
            or said.draining
            or not said.slots  # it asks whether the store answers
        ):
            return None
        passed = int((time.monotonic() - self._last_at) * 1000)
        claims, self._claims = self._claims, []
        return Exchanged(
            now=last.now + passed if now is None else now,
            claims=claims,
            refused=[],
            cancelled=[],
            seen=[],
            next_at=last.next_at,
            more=last.more or self.hinted,
        )

    def ask(self, said: Exchange, asked: dict[str, Any]) -> list[int]:
        """Has an exchange tell what was got, and returns that."""
        self.hinted = False
        asked["listens"] = True
        # Then the store need not look for pushes; from time to time it does, for a server that took over may not have
        # heard that the worker is busy.
        if self._busy and not self._got and not said.repeated and said.owned is None:
            asked["busy"] = True
        self._busy = False
        if self._got:
            asked["got"] = list(self._got)
        asked["slots"] = max(0, asked["slots"] - len(self._claims))
        return list(self._got)

    def heard(self, told: list[int], reply: Exchanged, pushes: list[Push], *, parked: bool) -> None:
        """Adds to the reply of an exchange, in which these were `told` of, what has been pushed."""
        for push in pushes:
            self._take(push)
        if told:
            self._got = [number for number in self._got if number not in told]
        self._busy = not (parked or pushes)
        self._last, self._last_at = reply, time.monotonic()
        if not reply.gone:
            reply.claims += self._claims
        self._claims = []

    def _take(self, push: Push) -> bool:
        if push.push not in self._got:
            self._got.append(push.push)  # Also if it was told already: a server that took over has not heard of that.
        if push.push in self._known:
            return False
        self._known.append(push.push)
        self._claims.append(claim_of(push.claim, push.kinds, self._worker, push.serial))
        return True


class Hands:
    """Of all workers of one store. A worker is pushed to while something of its event loop listens for work."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._listening: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        self._hands: dict[int, Hand] = {}

    async def listen(self, subscription: Subscription, wake: Callable[[], None]) -> Subscription:
        """Has workers of the running loop pushed to until the subscription is closed."""
        loop = asyncio.get_running_loop()
        self._listening.setdefault(loop, []).append(wake)
        return _WorkSubscription(self, subscription, loop, wake)

    def hint(self) -> None:
        """There may be work for others than those who are pushed to."""
        for hand in self._hands.values():
            hand.hinted = True

    async def hand(self, worker: int) -> Hand | None:
        """What a worker was given; None when it can't be pushed to."""
        loop = asyncio.get_running_loop()
        if loop not in self._listening:
            return None
        hand = self._hands.get(worker)
        if hand is None:
            hand = self._hands[worker] = Hand(worker, lambda: self._wake(loop))
            hand.subscription = await subscribe(
                self._location,
                f"push:{worker}",
                lambda: self._wake(loop),
                on_message=lambda message, _: hand.receive(message),
            )
        return hand

    async def forget(self, worker: int) -> None:
        """Lets go of an incarnation that is gone."""
        hand = self._hands.pop(worker, None)
        if hand is not None and hand.subscription is not None:
            await hand.subscription.close()

    async def ignore(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Somebody listens no more; with the last one of a loop its workers are not pushed to any more."""
        wakes = self._listening.get(loop, [])
        if wake in wakes:
            wakes.remove(wake)
        if not wakes and self._listening.pop(loop, None) is not None:
            for worker in [*self._hands]:
                await self.forget(worker)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        for wake in self._listening.get(loop, ()):
            wake()


class _WorkSubscription:
    def __init__(
        self,
        hands: Hands,
        subscription: Subscription,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
    ) -> None:
        self._hands = hands
        self._subscription = subscription
        self._loop = loop
        self._wake = wake

    async def close(self) -> None:
        await self._subscription.close()
        await self._hands.ignore(self._loop, self._wake)
