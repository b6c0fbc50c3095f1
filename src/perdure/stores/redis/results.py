"""Results that come with the message that a run has ended: whoever waits for one does not have to ask for it.

A message may be lost, or come from another version; so what is waited for is asked for all the same, from time to time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct

from perdure.model import Ended, State
from perdure.stores.base import Subscription
from perdure.stores.redis.listen import subscribe
from perdure.stores.redis.url import Location

_TRUSTED = 0.6
"""Seconds for which nobody asks again for a run that had not ended: its message would have come."""
_KEPT = 1.0
"""Seconds for which a result is kept that nobody fetches."""
_MOST = 10_000
"""How many runs are looked out for; when there are more it begins anew."""


class _Run(Struct):
    id: str
    state: State
    body: str | None = None
    long: bool = False
    """Whether the body has been left out."""


class _Message(Struct):
    v: int
    runs: list[_Run]


_Messages = msgspec.msgpack.Decoder(_Message)


class Results:
    """What one event loop has heard of, for each that listens."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._loops: dict[asyncio.AbstractEventLoop, _Heard] = {}

    async def listen(self, wake: Callable[[], None]) -> Subscription:
        """Calls `wake` in the running loop whenever a run may have ended that was asked for."""
        loop = asyncio.get_running_loop()
        heard = self._loops.get(loop)
        if heard is None:
            heard = self._loops[loop] = _Heard()

        def lost() -> None:
            heard.asked.clear()
            wake()

        def receive(message: bytes) -> None:
            heard.receive(message)
            wake()

        heard.listeners += 1
        try:
            subscription = await subscribe(
                self._location, "ended", lost, on_message=lambda message, _: receive(message)
            )
        except BaseException:
            self._close(loop)
            raise
        return _EndedSubscription(subscription, lambda: self._close(loop))

    async def ended(
        self, run_ids: Sequence[str], ask: Callable[[Sequence[str]], Awaitable[list[Ended]]]
    ) -> list[Ended]:
        """Those of the runs that have ended: what was heard of, and what the store says of the others."""
        heard = self._loops.get(asyncio.get_running_loop())
        if heard is None:
            return await ask(run_ids)
        found = heard.fetch(run_ids)
        known = {each.id for each in found}
        unsure = heard.unsure([run_id for run_id in run_ids if run_id not in known])
        return found + (await ask(unsure) if unsure else [])

    def forget(self, run_id: str) -> None:
        """What was heard of a run does not hold any more."""
        for heard in self._loops.values():
            heard.told.pop(run_id, None)

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        heard = self._loops.get(loop)
        if heard is not None:
            heard.listeners -= 1
            if heard.listeners == 0:
                del self._loops[loop]


class _Heard:
    def __init__(self) -> None:
        self.listeners = 0
        self.asked: dict[str, float] = {}
        """When the store was asked last for runs that are looked out for."""
        self.told: dict[str, tuple[float, Ended]] = {}

    def receive(self, message: bytes) -> None:
        """Takes a message. One of a version that says it in another way has everything asked for."""
        try:
            runs = _Messages.decode(message).runs
        except msgspec.MsgspecError:
            self.asked.clear()
            return
        now = time.monotonic()
        for run in runs:
            if run.id not in self.asked:
                continue
            if run.long:
                del self.asked[run.id]
            else:
                self.told[run.id] = now, Ended(run.id, run.state, run.body)

    def fetch(self, run_ids: Sequence[str]) -> list[Ended]:
        """What was heard of the runs, once."""
        if not self.told:
            return []
        oldest = time.monotonic() - _KEPT
        found = [told for run_id in run_ids if (told := self.told.pop(run_id, None)) is not None]
        self.told = {run_id: told for run_id, told in self.told.items() if told[0] >= oldest}
        return [ended for at, ended in found if at >= oldest]

    def unsure(self, run_ids: Sequence[str]) -> list[str]:
        """Those of the runs for which the store has to be asked, and will be."""
        now = time.monotonic()
        if len(self.asked) > _MOST:
            self.asked.clear()
        unsure = [run_id for run_id in run_ids if self.asked.get(run_id, 0.0) < now - _TRUSTED]
        self.asked.update(dict.fromkeys(unsure, now))
        return unsure


class _EndedSubscription:
    def __init__(self, subscription: Subscription, closed: Callable[[], None]) -> None:
        self._subscription = subscription
        self._closed = closed

    async def close(self) -> None:
        await self._subscription.close()
        self._closed()
