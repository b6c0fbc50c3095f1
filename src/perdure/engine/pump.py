"""The exchange loop: one call to the store per wake, for all runs of a worker together.

Whatever runs want written while a call is under way goes into the next one, so that runs side by side share commits
without waiting for a timer.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol, TypeAlias

from perdure.backoff import pauses
from perdure.clock import Alarm, Clock
from perdure.engine.firing import Firing
from perdure.engine.fitting import fitting_saves, fitting_settles
from perdure.engine.watching import Watches
from perdure.errors import InvalidInput, PerdureError, StoreUnavailable, id_conflict
from perdure.failures import encode_failure
from perdure.model import Fire, Millis
from perdure.stores.base import Store
from perdure.stores.exchange import (
    Cancelling,
    Claim,
    Exchange,
    Exchanged,
    Existed,
    Ref,
    Save,
    Seen,
    Settle,
    To,
    Told,
    Watch,
)

logger = logging.getLogger("perdure.worker")

POLL = 1.0
"""Seconds, at most, between two looks at the store when no wake-up comes; a random part is taken off."""

_LONGEST_PAUSE = 1.5
"""Seconds between two tries while the store does not answer: work goes on within two when it is back."""

_UNHURRIED = 0.05
"""Seconds that a wake-up may wait when there is neither a free slot nor anything to write but progress: many of them
must not become as many exchanges."""

_AGAIN = 0.2
"""Seconds until what a part of the store did not take is said again, unless there is something else to say before."""

_IN_STEP = 8
"""How many runs an answer has to move on for it to be handed out in two halves."""

_LAST_SERIAL = (1 << 32) - (1 << 24)
"""From here on an incarnation claims nothing more: a token has 32 bits for the serial. What it has goes on."""

_Pending: TypeAlias = tuple[Save, asyncio.Future[Existed | None]]


class Owner(Protocol):
    """What the pump needs of the execution of a run."""

    @property
    def ref(self) -> Ref: ...
    @property
    def token(self) -> int: ...
    def lost(self) -> None: ...
    def cancel(self, cancelling: Cancelling) -> None: ...
    def saw(self, seen: Seen) -> None: ...


class Pump:
    """Collects what runs have to say, exchanges it with the store, and hands out what comes back."""

    def __init__(self, store: Store, clock: Clock, *, free: Callable[[], int], begin: Callable[[Claim], None]) -> None:
        self._store = store
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._free = free
        self._begin = begin
        self.owners: dict[int, Owner] = {}
        self._saves: list[_Pending] = []
        self._settles: list[Settle] = []
        self._watches = Watches()
        self._told: dict[int, Told] = {}
        self._fires: list[Fire] = []
        self._firing = Firing()
        self._wake = asyncio.Event()
        self._hinted = True
        self._look = True
        self._ask_all = False
        self._looking: asyncio.TimerHandle | None = None
        self._polling: asyncio.TimerHandle | None = None
        self._alarm: Alarm | None = None
        self._alarm_at: Millis | None = None
        self._serial = 0
        self._worker = 0
        self._last_queue = ""
        self._coming: list[Claim] = []
        """Claims that are begun as soon as the next exchange is on its way."""
        self._stopping = False
        self.claiming = True
        self.dead = False
        self.exchanges = 0
        """How many exchanges were made; for tests and measurements."""

    # --- what runs say

    def save(self, save: Save) -> asyncio.Future[Existed | None]:
        """Has a checkpoint written with the next exchange. The future is done when it is durable, and cancelled
        when the run is not this worker's any more. It tells of the child that it starts if there was one already."""
        if save.gives_back:  # what took a signal, and is not sent yet, need not be
            same = save.token, save.checkpoint.key
            self._saves = [each for each in self._saves if (each[0].token, each[0].checkpoint.key) != same]
        future: asyncio.Future[Existed | None] = self._loop.create_future()
        self._saves.append((save, future))
        self._wake.set()
        return future

    def settle(self, settle: Settle) -> None:
        """Has a run settled with the next exchange, after the checkpoints that were handed in before."""
        self._settles.append(settle)
        self._wake.set()

    def watch(self, watch: Watch) -> None:
        """Asks at once, and then with every exchange (of many watches some, by turns), until `unwatch`, whether a wait
        is true."""
        if self._watches.add(watch):
            self.look()

    def tell(self, told: Told) -> None:
        """Has the progress of a run written, soon; of several words the last one."""
        self._told[told.token] = told
        self._look_soon()

    def unwatch(self, token: int, key: str) -> None:
        self._watches.remove(token, key)

    def hint(self) -> None:
        """Something may have changed in the store."""
        self._hinted = True
        self._wake.set()

    @property
    def silent(self) -> bool:
        """Whether there is nothing to say and nothing to look for; an exchange may be under way."""
        return not (self._saves or self._settles or self._told or self._fires or self._coming or self._wake.is_set())

    # --- the loop

    def assign(self, worker: int) -> None:
        """Speaks for a (new) incarnation from now on. What was collected for an older one is dropped: it is refused
        by its tokens anyway."""
        self._worker = worker
        self._serial = 0
        self._hinted = True
        self._wake.set()

    @property
    def worn(self) -> bool:
        """Whether the incarnation has no serials left for claims: another one is to follow it."""
        return self._serial >= _LAST_SERIAL // self._store.parts

    async def run(self) -> bool:
        """Exchanges until the store says that the incarnation is gone, or it is worn and owns nothing any more (True),
        or until stopped (False)."""
        self._poll()
        try:
            while not self._stopping:
                await self._woken()
                exchange, futures = self._collect()
                reply = await self._send(exchange, futures)
                if reply is not None:
                    await self._hand_out(exchange, futures, reply)
                    if reply.gone or (self.worn and not self.owners and not self._settles):
                        return True
            return False
        finally:
            for timer in (self._polling, self._looking, self._alarm):
                if timer is not None:
                    timer.cancel()
            self._looking = self._alarm = None

    def drain(self) -> None:
        """Claims nothing more, and gives up the sessions of which nothing runs, the others as their last run ends."""
        self.claiming = False
        self.look()

    def stop(self) -> None:
        """Has `run` return after the exchange that is under way."""
        self._stopping = True
        self._wake.set()

    async def flush(self) -> None:
        """Writes what is left at shutdown; claims nothing."""
        while self._saves or self._settles or self._told:
            exchange, futures = self._collect()
            reply = await self._store.exchange(exchange)
            self._take_back(exchange, futures, reply)
            self._deliver(exchange, futures, reply)
            if reply.unsaid:
                raise StoreUnavailable("a part of the store can't be reached: what it has is freed when the lease ends")

    async def _woken(self) -> None:
        """Waits until there is something to say, or something may be ready that there is room for."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._saves or self._settles or self._fires or self._look or self._stopping:
                return
            if self._hinted and (self._room() or self._watches):
                return
            if self._hinted:  # there is no room, but it may be a cancellation
                self._look_soon()

    def _look_soon(self, after: float = _UNHURRIED) -> None:
        if self._looking is None:
            self._looking = self._loop.call_later(after, self.look)

    def look(self) -> None:
        """Has an exchange made, whether or not there is anything to say or room for more."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self._look = True
        self._wake.set()

    def look_everywhere(self) -> None:
        """Has an exchange made with all parts of the store, also with those that have not told of anything. It asks
        whether the worker still owns its runs as well."""
        self._ask_all = True
        self.look()

    def _poll(self) -> None:
        """Looks at the store without a hint, from time to time: hints may be lost. And asks whether it still owns its
        runs: of one that was deleted nothing else would tell, as long as it has nothing to say."""
        self.look_everywhere()
        self._polling = self._loop.call_later(POLL * random.uniform(0.7, 1.0), self._poll)

    def _room(self) -> int:
        return max(0, self._free() - len(self._coming)) if self.claiming and not self.worn else 0

    def _collect(self) -> tuple[Exchange, list[_Pending]]:
        count, size = fitting_saves(save for save, _ in self._saves)
        saves, self._saves = self._saves[:count], self._saves[count:]
        settles: list[Settle] = []
        if not self._saves:  # a settle must not overtake a checkpoint of its run
            count = fitting_settles(self._settles, size)
            settles, self._settles = self._settles[:count], self._settles[count:]
        if self._hinted or self._ask_all:
            self._watches.begin_round()
        self._hinted = self._look = False
        if self._saves or self._settles:
            self._wake.set()
        self._serial += 1
        exchange = Exchange(
            worker=self._worker,
            serial=self._serial,
            saves=[save for save, _ in saves],
            settles=settles,
            slots=self._room(),
            watches=self._watches.next(),
            told=list(self._told.values()),
            fires=self._fires,
            after=self._last_queue,
            owned=self._all_owned(settles) if self._ask_all else None,
            skips=self._firing.skips(),
            draining=not self.claiming,
        )
        self._told, self._fires, self._ask_all = {}, [], False
        if self._watches.has_new:
            self.look()
        elif self._watches.in_round:
            self._look_soon()
        return exchange, saves

    def _all_owned(self, settles: list[Settle]) -> list[tuple[Ref, int]]:
        """What the store may believe to be this worker's: what runs, and what it has not been told the end of."""
        owned = {token: owner.ref for token, owner in self.owners.items()}
        owned.update((settle.token, settle.ref) for settle in (*settles, *self._settles))
        return [(ref, token) for token, ref in owned.items()]

    async def _send(self, exchange: Exchange, futures: list[_Pending]) -> Exchanged | None:
        """Exchanges, for as long as it takes: an error that may pass is tried again, under the same serial."""
        tries = pauses(0.05, _LONGEST_PAUSE)
        while True:
            try:
                self.exchanges += 1
                reply = await self._store.exchange(exchange)
            except Exception as error:
                if not isinstance(error, StoreUnavailable) and await self._answers():
                    await self._one_by_one(exchange, futures, error)
                    return None
                unknown, pause = not isinstance(error, PerdureError), next(tries)
                logger.warning("the store does not answer (%s); next try in %.1f s", error, pause, exc_info=unknown)
                exchange.repeated = True
                await asyncio.sleep(pause)
            else:
                self._clock.saw(reply.now)
                self._take_back(exchange, futures, reply)
                return reply

    def _take_back(self, exchange: Exchange, futures: list[_Pending], reply: Exchanged) -> None:
        """Keeps what the store did not take, to be said again before what is said of the same runs from now on."""
        if not reply.unsaid:
            return
        unsaid = set(reply.unsaid)
        self._saves = [pending for pending in futures if pending[0].token in unsaid] + self._saves
        self._settles = [settle for settle in exchange.settles if settle.token in unsaid] + self._settles
        self._told = {told.token: told for told in exchange.told if told.token in unsaid} | self._told
        futures[:] = [pending for pending in futures if pending[0].token not in unsaid]
        exchange.settles = [settle for settle in exchange.settles if settle.token not in unsaid]
        self._look_soon(_AGAIN)

    async def _answers(self) -> bool:
        """Whether the store takes an exchange that says nothing. If so, what it refused is in what was said; if not,
        no run is to blame, and what was said is kept until the store takes it."""
        self._serial += 1
        try:
            reply = await self._store.exchange(Exchange(self._worker, self._serial))
        except Exception:
            return False
        self._take(reply.claims)
        return True

    async def _one_by_one(self, exchange: Exchange, futures: list[_Pending], error: Exception) -> None:
        """An exchange that the store can't take: one run's part must not take the others' with it."""
        if len(exchange.saves) + len(exchange.settles) + len(exchange.told) + len(exchange.fires) <= 1:
            logger.error("the store refuses what a run says", exc_info=error)
            for _, future in futures:
                _fail(future, error)
            for settle in exchange.settles:
                if owner := self.owners.get(settle.token):
                    owner.lost()
                if settle.to is not To.FAILED:  # or it would be owned, by nobody's code, as long as this worker lives
                    self.settle(Settle(settle.ref, settle.token, To.FAILED, encode_failure(error)))
            if not futures and not exchange.settles:
                await asyncio.sleep(1.0)
                self.hint()
            return
        parts = [(Exchange(self._worker, 0, saves=[item[0]]), [item]) for item in futures]
        parts += [(Exchange(self._worker, 0, told=[told]), []) for told in exchange.told]
        parts += [(Exchange(self._worker, 0, settles=[settle]), []) for settle in exchange.settles]
        parts += [(Exchange(self._worker, 0, fires=[fire]), []) for fire in exchange.fires]
        for part, owned in parts:
            self._serial += 1
            part.serial = self._serial
            reply = await self._send(part, owned)
            if reply is not None:
                self._deliver(part, owned, reply)
        self.hint()

    async def _hand_out(self, exchange: Exchange, futures: list[_Pending], reply: Exchanged) -> None:
        """Has runs go on. If all of them wait for this answer, half of them go on first, and what these have to say is
        on its way to the store while the others work: or the worker and the store would take turns at being idle."""
        in_step = not (self._saves or self._settles) and len(futures) + len(reply.claims) >= _IN_STEP
        if not self._store.beside or not in_step or reply.refused or reply.gone:
            self._deliver(exchange, futures, reply)
            return
        saved, claimed = len(futures) // 2, len(reply.claims) // 2
        claims, reply.claims = reply.claims[claimed:], reply.claims[:claimed]
        self._deliver(exchange, futures[:saved], reply)
        await asyncio.sleep(0)
        if not self.dead:
            self._saved(futures[saved:], reply)
            self._claimed(claims)

    def _deliver(self, exchange: Exchange, futures: list[_Pending], reply: Exchanged) -> None:
        if self.dead:
            return
        refused = set(reply.refused)
        self._saved(futures, reply)
        for settle in exchange.settles:
            self.owners.pop(settle.token, None)
        for token in refused:
            if owner := self.owners.get(token):
                owner.lost()
        for token, cancelling in reply.cancelled:
            if owner := self.owners.get(token):
                owner.cancel(cancelling)
        for seen in reply.seen:
            if owner := self.owners.get(seen.token):
                owner.saw(seen)
        self._claimed(reply.claims)
        # Of those that were not sent yet the store tells again.
        self._fires = self._firing.fires(reply.due, reply.now)
        if self._fires:
            self._wake.set()
        elif reply.due:  # none of them can be read: there may be others
            self.look()
        self._set_alarm(reply.next_at)
        if reply.more:
            self.hint()

    def _saved(self, futures: list[_Pending], reply: Exchanged) -> None:
        """Lets those go on who wait for their checkpoints to be durable."""
        if not futures:
            return
        refused = set(reply.refused)
        children = {(existed.token, existed.key): existed for existed in reply.existed}
        for save, future in futures:
            child = children.get((save.token, save.checkpoint.key)) if save.starts is not None else None
            if reply.gone or save.token in refused:
                future.cancel()
            elif child is not None and not child.same:
                _fail(future, InvalidInput(child.refused) if child.refused else id_conflict(child.id, "this start"))
            elif not future.done():
                future.set_result(child)

    def _claimed(self, claims: list[Claim]) -> None:
        """Has runs begin that were claimed. If there is something to say already that is sent first, and they begin
        while the store is at it."""
        if not claims:
            return
        self._last_queue = claims[-1].queue
        if self._store.beside and (self._saves or self._settles) and not (self._ask_all or self.worn):
            self._coming = claims
            self._loop.call_soon(self._take_coming)
        else:
            self._take(claims)

    def _take_coming(self) -> None:
        claims, self._coming = self._coming, []
        if not self.dead:
            self._take(claims)

    def _take(self, claims: list[Claim]) -> None:
        """Begins what was claimed. A store may claim for a worker that waits before it hears that this one stops:
        that is handed back, for others to begin."""
        for claim in claims:
            if self.claiming:
                self._begin(claim)
            else:
                self.settle(Settle(claim.ref, claim.token, To.RELEASE))

    def _set_alarm(self, at: Millis | None) -> None:
        if at == self._alarm_at and self._alarm is not None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = None if at is None else self._clock.call_at(at, self._rang)

    def _rang(self) -> None:
        self._alarm = None
        self.hint()


def _fail(future: asyncio.Future[Existed | None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a save that nobody waits for may fail without a word: its run was told
