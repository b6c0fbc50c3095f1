"""A worker: an incarnation in the store, slots for runs, and the loops that serve them."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from secrets import token_hex
from typing import Any

from perdure.backoff import pauses
from perdure.clock import Clock
from perdure.engine.definitions import StepDefinition, WorkflowDefinition
from perdure.engine.execution import Execution
from perdure.engine.leases import LeaseThread
from perdure.engine.points import Tap
from perdure.engine.processes import Processes
from perdure.engine.pump import Pump
from perdure.engine.reclaiming import Reclaiming
from perdure.engine.slots import Slots
from perdure.engine.tasks import Adoption
from perdure.engine.threads import ThreadLayers
from perdure.errors import PerdureError, StoreError, StoreUnavailable
from perdure.model import Millis, Retention
from perdure.stores.base import PRUNE_LIMIT, Registration, Store, Subscription, Topic
from perdure.stores.exchange import Claim

logger = logging.getLogger("perdure.worker")

PRUNE_PAUSE = 60.0
"""Seconds, at most, between two looks for runs that the policies let go; a random part is taken off."""

_PRUNE_SHARE = 0.1
"""Of the time that the workers of a store, all together, may spend on removing them while there are more."""

_PRUNE_LONG = 1.0
"""Seconds after which a look removes fewer runs the next time: they have many checkpoints."""

_LONGEST_PAUSE = 1.0
"""Seconds between two tries of a duty that fails: with the pause above, all within two when the store is back."""

_FAREWELL = 2.0
"""Seconds that a stop waits, once the grace is over, for what only the store can do."""

_LAST_WORD = 0.2
"""Seconds for each more of these things, when the store let that time pass."""


class Runtime:
    """What executions share: the store, the clock, the pump, threads and processes."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        concurrency: int,
        lease: Millis,
        max_value_bytes: int,
        begin: Callable[[Claim], None],
        tap: Tap | None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.max_value_bytes = max_value_bytes
        self.tap = tap
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.adoption = Adoption(self.loop)
        self.new_task = self.adoption.new_task
        self.executions: dict[int, Execution] = {}
        self.pump = Pump(store, clock, free=lambda: self.slots.free, begin=begin)
        self.slots = Slots(concurrency, self.pump.hint)
        self.threads = ThreadLayers(min(concurrency, 64))
        self.processes = Processes(os.cpu_count() or 1, max_value_bytes)
        self.steps: dict[str, StepDefinition] = {}
        """The steps that were called, by name."""
        self.committing: set[str] = set()
        """The steps whose transactions were seen to commit, by name."""
        self.random = random.Random().random
        self.lease: LeaseThread | None = None
        """That of the incarnation, once there is one."""
        self.reclaiming = Reclaiming(store, clock, lease)
        self.loops: list[asyncio.Task[None]] = []
        self.idle = asyncio.Event()
        self.idle.set()
        self.stirred: Callable[[], None] = _nobody
        """Called when something of a run is over or begins to wait, so that a test learns when all is quiet."""

    @property
    def ending(self) -> bool:
        """Whether the worker's loops were stopped: the worker ends, or the event loop that it runs in."""
        return any(loop.done() or loop.cancelling() for loop in self.loops)

    def began(self, execution: Execution) -> None:
        self.executions[execution.token] = execution
        self.slots.enter()
        self.pump.owners[execution.token] = execution
        self.idle.clear()

    def finished(self, execution: Execution) -> None:
        """Frees the slot; more than once does nothing."""
        if self.executions.pop(execution.token, None) is not None:
            self.pump.owners.pop(execution.token, None)
            self.slots.leave(execution.token)
            if not self.executions:
                self.idle.set()


class Worker:
    """Claims runs of the app's workflows and executes them, `concurrency` at a time.

    Use it as an async context manager, or call `start` and `stop`. It serves until stopped: a store that goes away is
    waited for, an incarnation that was declared dead is followed by a new one.
    """

    def __init__(
        self,
        store: Callable[[], Awaitable[Store]],
        workflows: Mapping[str, WorkflowDefinition],
        clock: Clock,
        *,
        queues: Sequence[str],
        concurrency: int,
        lease: Millis,
        grace: float,
        max_value_bytes: int,
        sessions: int = 0,
        session_idle: Millis = 60_000,
        retention: Sequence[Retention] = (),
        declare: Callable[[Store], Awaitable[None]] | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"
        self._open = store
        self._workflows = workflows
        self._clock = clock
        self._queues = list(queues)
        self._concurrency = concurrency
        self._lease = lease
        self._grace = grace
        self._max_value_bytes = max_value_bytes
        self._sessions = sessions
        self._session_idle = session_idle
        self._retention = retention
        self._declare = declare
        """Puts into the store what code declares, before the worker begins, and before it begins anew."""
        # Called at points in the life of runs: the testing kit sets it before the worker starts.
        self.tap: Tap | None = None
        self._incarnation = 0
        self._lives = 0
        self._stopping = False
        self._patience = _FAREWELL
        self._prune_limit = PRUNE_LIMIT
        self._subscription: Subscription | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._runtime: Runtime | None = None

    @property
    def running(self) -> int:
        """How many runs it executes now."""
        return len(self.runtime.executions)

    @property
    def runtime(self) -> Runtime:
        if self._runtime is None:
            raise PerdureError("the worker is not started: use `async with app.worker():` or await worker.start()")
        return self._runtime

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Registers with the store and begins to claim; raises when the store can't be used. A worker that was stopped
        may be started again."""
        if self._loops:
            raise PerdureError("the worker is started already")
        store = await self._open()
        if self._declare is not None:
            await self._declare(store)
        self._stopping = False
        self._runtime = Runtime(
            store,
            self._clock,
            concurrency=self._concurrency,
            lease=self._lease,
            max_value_bytes=self._max_value_bytes,
            begin=self._begin,
            tap=self.tap,
        )
        try:
            await self._register()
        except BaseException:
            await self._leave(None)
            raise
        try:
            self._subscription = await self.runtime.store.subscribe(Topic.WORK, self._runtime.pump.hint)
        except BaseException:
            await self._leave(self.runtime.store.retire(self._incarnation))
            raise
        self._loops = [
            asyncio.create_task(self._forever("exchange", self._exchange)),
            asyncio.create_task(self._forever("reclaim", self._reclaim)),
        ]
        if self._retention:
            self._loops.append(asyncio.create_task(self._forever("prune", self._prune)))
        self._runtime.loops = self._loops

    async def stop(self, grace: float | None = None) -> None:
        """Stops claiming, lets runs end for `grace` seconds, hands back the others at once, and leaves the store.

        Always returns, within about the grace and a few seconds, even when the store is gone.
        """
        runtime = self.runtime
        self._stopping = True
        self._patience = _FAREWELL
        runtime.pump.drain()
        try:
            async with asyncio.timeout(self._grace if grace is None else grace):
                await runtime.idle.wait()
        except TimeoutError:
            logger.warning("the time of grace is over: %d runs are handed back", len(runtime.executions))
        for execution in list(runtime.executions.values()):
            execution.release()
        runtime.pump.stop()
        if self._loops:
            await self._farewell(asyncio.shield(self._loops[0]))
        await self._end_loops()
        for execution in list(runtime.executions.values()):  # claimed by the exchange that was under way
            execution.release()
        await self._farewell(runtime.pump.flush())
        await self._leave(self.runtime.store.retire(self._incarnation))

    def die(self) -> None:
        """Stops at once as if the process had died, in the middle of whatever it does: nothing is written from here
        on, the lease is left to end. For tests; `kill` cleans up after it."""
        self.runtime.pump.dead = True
        for execution in list(self.runtime.executions.values()):
            execution.halt()
        for loop in self._loops:
            loop.cancel()

    async def kill(self) -> None:
        """Dies, and lets go of what a process would take with it: threads, connections, processes. For tests."""
        self.die()
        await self._end_loops()
        await self._leave(None)

    async def _end_loops(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops = []

    async def _leave(self, goodbye: Coroutine[Any, Any, None] | None) -> None:
        if self.runtime.lease is not None:
            self.runtime.lease.stop()
        if goodbye is not None:
            await self._farewell(goodbye)
        if self._subscription is not None:
            await self._farewell(self._subscription.close())
        self.runtime.processes.close()
        self.runtime.adoption.end()

    async def _farewell(self, work: Awaitable[Any]) -> None:
        """Does something at the end that may fail or hang without keeping the end from coming."""
        try:
            async with asyncio.timeout(self._patience):
                await work
        except TimeoutError:
            self._patience = _LAST_WORD
            logger.warning("gave up waiting for the store at the end; what is left is freed when the lease ends")
        except PerdureError as error:
            logger.warning("at the end: %s", error)

    # --- incarnations

    async def _register(self) -> None:
        """Begins an incarnation: its id is new, and so are the tokens of its claims."""
        self._lives += 1
        since = self._clock.steady()
        self._incarnation = await self.runtime.store.register(
            Registration(
                name=self.name if self._lives == 1 else f"{self.name}.{self._lives}",
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=self._queues,
                workflows=list(self._workflows),
                versions={name: each.versions for name, each in self._workflows.items() if each.versions},
                sessions=self._sessions,
                session_idle=self._session_idle,
                concurrency=self._concurrency,
                lease=self._lease,
            )
        )
        loop = asyncio.get_running_loop()
        self.runtime.lease = LeaseThread(
            self.runtime.store.keeper(self._incarnation, self._lease),
            self._lease,
            lambda: loop.call_soon_threadsafe(self.runtime.pump.hint),
            clock=self._clock,
            since=since,
            alive=lambda: not loop.is_closed(),
        )
        self.runtime.pump.assign(self._incarnation)

    async def _exchange(self) -> None:
        """Exchanges until the incarnation is gone, or worn, then begins another."""
        if not await self.runtime.pump.run():
            return
        worn = self.runtime.pump.worn
        if not worn:
            logger.warning(
                "the store does not know this worker any more: its lease ended, or the store was emptied; it lets go of"
                " its runs, and begins anew"
            )
        for execution in list(self.runtime.executions.values()):
            execution.lost()
        if self.runtime.lease is not None:
            self.runtime.lease.stop()
        if worn:
            await self.runtime.store.retire(self._incarnation)
        elif self._declare is not None:
            await self._declare(self.runtime.store)  # It may have been emptied, or have lost what was put last.
        await self._register()

    async def _reclaim(self) -> None:
        """Takes back what dead workers held."""
        await asyncio.sleep(self.runtime.reclaiming.pause())
        count = await self.runtime.reclaiming.look(self.runtime.lease)
        if count:
            logger.warning("took back %d runs of workers that died", count)
            self.runtime.pump.hint()

    async def _prune(self) -> None:
        """Removes what the policies let go, a little at a time, and comes back soon only while there is more."""
        loop, store, limit = asyncio.get_running_loop(), self.runtime.store, self._prune_limit
        began = loop.time()
        count = await store.prune(self._retention, limit=limit)
        took = loop.time() - began
        self._prune_limit = max(1, limit // 2) if took > _PRUNE_LONG else min(limit * 2, PRUNE_LIMIT)
        pause = PRUNE_PAUSE
        if count:
            logger.debug("pruned %d runs", count)
        if count == limit:
            pause = took / _PRUNE_SHARE * max(1, len(await store.workers()))
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _forever(self, what: str, once: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeats one duty of the worker, through whatever goes wrong with it."""
        tries = pauses(0.1, _LONGEST_PAUSE)
        while not self._stopping:
            try:
                await once()
                tries = pauses(0.1, _LONGEST_PAUSE)
            except StoreUnavailable as error:
                logger.warning("%s: the store does not answer (%s); trying again", what, error)
            except StoreError as error:
                logger.error("%s: %s; trying again", what, error)
            except Exception:
                logger.exception("%s went wrong; trying again", what)
            else:
                continue
            await asyncio.sleep(next(tries))

    # --- runs

    def _begin(self, claim: Claim) -> None:
        definition = self._workflows[claim.workflow]
        self.runtime.began(Execution(self.runtime, claim, definition))


def _nobody() -> None:
    """Nobody asks."""
