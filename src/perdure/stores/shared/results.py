"""Results that come with the message that a run has ended: whoever waits for one does not have to ask for it.

A message may be lost, or come from another version; so what is waited for is asked for all the same, from time to time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from perdure.model import Ended, Start, Started, State
from perdure.stores.base import Subscription

_TRUSTED = 0.6
"""Seconds for which nobody asks again for a run that had not ended: its message would have come."""
_KEPT = 1.0
"""Seconds for which a result is kept that nobody fetches."""
_MOST = 10_000
"""How many runs are looked out for; when there are more it begins anew."""


class Told(Struct):
    """What a message says of a run."""

    id: str
    state: State
    body: str | None = None
    long: bool = False
    """Whether the body has been left out."""


Receive: TypeAlias = Callable[[Iterable[Told] | None], None]
"""Takes what came: runs that ended, or None when some of them may have been missed."""


class Results:
    """What one event loop has heard of, for each that listens."""

    def __init__(self) -> None:
        self._loops: dict[asyncio.AbstractEventLoop, _Heard] = {}

    async def listen(
        self, wake: Callable[[], None], subscribe: Callable[[Receive], Awaitable[Subscription]]
    ) -> Subscription:
        """Calls `wake` in the running loop whenever a run may have ended that was asked for. `subscribe` begins to
        listen, and returns when messages count."""
        loop = asyncio.get_running_loop()
        heard = self._loops.get(loop)
        if heard is None:
            heard = self._loops[loop] = _Heard()

        def receive(runs: Iterable[Told] | None) -> None:
            heard.receive(runs)
            wake()

        heard.listeners += 1
        try:
            subscription = await subscribe(receive)
        except BaseException:
            self._close(loop)
            raise
        heard.sure += 1
        return _EndedSubscription(subscription, lambda: self._close(loop, sure=1))

    async def enqueue(
        self, starts: Sequence[Start], make: Callable[[Sequence[Start]], Awaitable[list[Started]]]
    ) -> list[Started]:
        """Makes runs. Of those that are new nobody has to ask at once: their ends are told from the beginning."""
        heard = self._loops.get(asyncio.get_running_loop())
        if heard is None or heard.sure == 0:
            return await make(starts)
        # From now on: a run may end before it is known that it was made.
        heard.expect([start.id for start in starts])
        try:
            started = await make(starts)
        except BaseException:
            heard.forget([start.id for start in starts])
            raise
        heard.forget([made.id for made in started if made.existed])
        return started

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
        answered = await ask(unsure) if unsure else []
        heard.forget([ended.id for ended in answered])  # no message comes any more: who asks again asks the store
        return found + answered

    async def missing(self, run_ids: Sequence[str], ask: Callable[[Sequence[str]], Awaitable[list[str]]]) -> list[str]:
        """Those of the ids that no run has. Runs that were made here just now are there."""
        heard = self._loops.get(asyncio.get_running_loop())
        unsure = run_ids if heard is None else heard.strange(run_ids)
        return await ask(unsure) if unsure else []

    def forget(self, run_ids: Sequence[str]) -> None:
        """What was heard of runs does not hold any more."""
        for heard in self._loops.values():
            heard.forget(run_ids)

    def _close(self, loop: asyncio.AbstractEventLoop, *, sure: int = 0) -> None:
        heard = self._loops.get(loop)
        if heard is not None:
            heard.sure -= sure
            heard.listeners -= 1
            if heard.listeners == 0:
                del self._loops[loop]


class _Heard:
    def __init__(self) -> None:
        self.listeners = 0
        self.sure = 0
        """For how many of them messages count."""
        self._asked: dict[str, float] = {}
        """When the store was asked last for runs that are looked out for, or they were made."""
        self._made: dict[str, float] = {}
        self._tidied = 0.0
        self._told: dict[str, tuple[float, Ended]] = {}

    def receive(self, runs: Iterable[Told] | None) -> None:
        """Takes a message. When some may have been missed, everything is asked for."""
        if runs is None:
            self._asked.clear()
            return
        now = time.monotonic()
        for run in runs:
            if run.id not in self._asked:
                continue
            if run.long:
                del self._asked[run.id]
            else:
                self._told[run.id] = now, Ended(run.id, run.state, run.body)

    def expect(self, run_ids: Sequence[str]) -> None:
        """Looks out for runs that are about to be made here."""
        if len(self._asked) + len(run_ids) <= _MOST:
            now = time.monotonic()
            if self._tidied < now - _TRUSTED:
                self._made = {run_id: since for run_id, since in self._made.items() if since > now - _TRUSTED}
                self._tidied = now
            self._made.update(dict.fromkeys(run_ids, now))
            self._asked.update(dict.fromkeys(run_ids, now))

    def fetch(self, run_ids: Sequence[str]) -> list[Ended]:
        """What was heard of the runs, once: who asks for one of them again asks the store."""
        if not self._told:
            return []
        oldest = time.monotonic() - _KEPT
        found = [told for run_id in run_ids if (told := self._told.pop(run_id, None)) is not None]
        for _, ended in found:
            self._asked.pop(ended.id, None)
        self._told = {run_id: told for run_id, told in self._told.items() if told[0] >= oldest}
        return [ended for at, ended in found if at >= oldest]

    def unsure(self, run_ids: Sequence[str]) -> list[str]:
        """Those of the runs for which the store has to be asked, and will be."""
        now = time.monotonic()
        if len(self._asked) > _MOST:
            self._asked.clear()
        unsure = [run_id for run_id in run_ids if self._asked.get(run_id, 0.0) < now - _TRUSTED]
        self._asked.update(dict.fromkeys(unsure, now))
        return unsure

    def strange(self, run_ids: Sequence[str]) -> list[str]:
        """Those of the runs that were not made here just now."""
        since = time.monotonic() - _TRUSTED
        return [run_id for run_id in run_ids if self._made.get(run_id, 0.0) < since]

    def forget(self, run_ids: Sequence[str]) -> None:
        for known in (self._told, self._asked, self._made):
            for run_id in run_ids:
                known.pop(run_id, None)


class _EndedSubscription:
    def __init__(self, subscription: Subscription, closed: Callable[[], None]) -> None:
        self._subscription = subscription
        self._closed: Callable[[], None] | None = closed

    async def close(self) -> None:
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()
        await self._subscription.close()
