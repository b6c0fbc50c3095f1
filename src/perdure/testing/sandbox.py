"""An app in a sandbox: an empty store in memory, a worker, and a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Self, cast

from perdure.app import App
from perdure.call import PORTAL, Call
from perdure.client import Client
from perdure.clock import millis
from perdure.engine.points import Tap
from perdure.engine.worker import Worker
from perdure.errors import PerdureError
from perdure.stores import open_store
from perdure.stores.base import Store
from perdure.testing.clock import VirtualClock
from perdure.testing.observed import ObservedStore

_PATIENCE = 10.0
"""Seconds of real time without any progress after which work counts as stuck."""

_TURNS = 20
"""Turns of the event loop after which code that has not done anything is taken to wait."""

_END = 1.0
"""Seconds that the code of runs has to unwind when its worker is killed."""

_FOR_EVER = timedelta(days=36_500)
"""The lease of the worker: the clock moves by days while it lives."""


def run(app: App, *, concurrency: int = 50, start: datetime | None = None) -> Sandbox:
    """Runs an app in a sandbox, for a test: with an empty store in memory in place of its own, and with a worker.

    Use it as an async context manager, or as a plain one where there is no event loop (then `.wait()` takes the place
    of `await`). Everything that uses the app meanwhile is in the sandbox; afterwards the app is as it was.

    - `concurrency`: how many runs the worker executes at once.
    - `start`: what time the clock shows first; the present when not given. Then time stands still until it is moved.

        async def test_an_order_is_shipped_after_two_days():
            async with testing.run(app) as sandbox:
                order = await fulfil.start("order-7")
                await sandbox.advance(days=2)
                assert await order.result() == "shipped"
    """
    return Sandbox(app, VirtualClock(start), concurrency=concurrency)


class Sandbox:
    """What a test holds of an app in a sandbox: see `run`, which makes it.

    Each method gives a `Call`: await it, or say `.wait()` in a test without an event loop.
    """

    def __init__(
        self,
        app: App,
        clock: VirtualClock,
        *,
        concurrency: int = 50,
        open: Callable[[VirtualClock], Store] | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.app = app
        self.clock = clock
        self._concurrency = concurrency
        self._tap = tap
        self._moved = asyncio.Event()
        self._store = ObservedStore(
            open_store("sqlite://", now=clock.now) if open is None else open(clock), self.stirred
        )
        self._worker: Worker | None = None
        self._before = (app.client, app.clock)

    # --- time

    def advance(
        self,
        duration: timedelta | float = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        settle: bool = True,
    ) -> Call[None]:
        """Lets time pass, all of the durations together: goes from due time to due time (sleeps, timeouts, retries,
        deadlines, delayed starts), and each time lets the runs go on until they can't.

        `TimeoutError` tells of a step that doesn't come to an end. A step that hangs on purpose, to be ended by its
        timeout for example, needs `settle=False`: then the clock is moved at once, and nothing is waited for.

            await sandbox.advance(days=3)
        """
        given = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        delay = millis(duration, "the time to advance") + millis(given, "the time to advance")

        async def advance() -> None:
            target = self.clock.now() + delay
            if not settle:
                self.clock.move_to(target)
                return
            await self._settle()
            while (at := self.clock.next_at) is not None and at <= target:
                self.clock.move_to(at)
                await self._settle()
            self.clock.move_to(target)

        return Call(advance, "advance()")

    def settle(self) -> Call[None]:
        """Waits until no run can go on before time passes or something comes from outside: a signal, a start.

        `TimeoutError` tells of a step that doesn't come to an end.
        """
        return Call(self._settle, "settle()")

    # --- the worker

    @property
    def worker(self) -> Worker:
        """The worker; `PerdureError` when it was killed."""
        if self._worker is None:
            raise PerdureError("the sandbox has no worker: it was killed, and none was started")
        return self._worker

    def kill_worker(self) -> Call[None]:
        """Ends the worker as a crash of its process would, in the middle of whatever it does. What it was at is left
        for the next one.

            await sandbox.kill_worker()
            await sandbox.start_worker()
        """

        async def kill() -> None:
            name = self.worker.name
            await self._end_worker()
            await cast(Store, self._store).bury(name)

        return Call(kill, "kill_worker()")

    def start_worker(self) -> Call[None]:
        """Starts a worker in place of one that was killed."""

        async def start() -> None:
            if self._worker is not None:
                raise PerdureError("the sandbox has a worker already; kill_worker() ends it")
            worker = self.app.worker(concurrency=self._concurrency, lease=_FOR_EVER)
            worker.tap = self._tap
            await worker.start()
            worker.runtime.stirred = self.stirred
            self._worker = worker

        return Call(start, "start_worker()")

    # --- from here to there

    async def __aenter__(self) -> Self:
        self.app.client, self.app.clock = Client(cast(Store, self._store)), self.clock
        self.clock.stirred = self.stirred
        try:
            await self.start_worker()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        client = self.app.client
        try:
            await self._end_worker()
        finally:
            self.app.client, self.app.clock = self._before
            await client.close()

    def __enter__(self) -> Self:
        return PORTAL.drive(self.__aenter__())

    def __exit__(self, *_: object) -> None:
        PORTAL.drive(self.__aexit__())

    def stirred(self) -> None:
        """Something has happened: whoever waits for quiet looks again."""
        self._moved.set()

    async def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        executions = list(worker.runtime.executions.values())
        await worker.kill()
        tasks = {task for execution in executions for task in execution.tasks}
        if tasks:
            await asyncio.wait(tasks, timeout=_END)

    async def _settle(self) -> None:
        store = self._store
        known, active = store.begun, -1
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                while not (self._quiet(known) and await self._stays_quiet()):
                    if store.active != active:
                        active = store.active
                        limit.reschedule(loop.time() + _PATIENCE)
                    await self._moved.wait()
        except TimeoutError:
            raise TimeoutError(self._stuck()) from None

    def _quiet(self, known: int) -> bool:
        """Whether nothing goes on by itself, going by what the store said after its exchange number `known`."""
        self._moved.clear()
        worker = self._worker
        if worker is None or worker.runtime.pump.dead:
            return True
        runtime = worker.runtime
        if self._store.under_way or not all(one.blocked for one in runtime.executions.values()):
            return False
        due = self.clock.next_at
        if due is not None and due <= self.clock.now():
            return False
        if self._store.all_said > known and self._store.all_said == self._store.begun and runtime.pump.silent:
            return True
        runtime.pump.look_everywhere()
        return False

    async def _stays_quiet(self) -> bool:
        """Gives the code of runs that are in memory a few turns of the loop: one wait's end may be another one's."""
        if self._worker is None or not self._worker.runtime.executions:
            return True
        for _ in range(_TURNS):
            await asyncio.sleep(0)
            if self._moved.is_set():
                return False
        return True

    def _stuck(self) -> str:
        busy = [one for one in self.worker.runtime.executions.values() if not one.blocked]
        what = "; ".join(f"run {one.claim.id} ({one.definition.name}) {_doing(one.steps)}" for one in busy[:5])
        return (
            f"{len(busy)} runs do not come to rest: {what}. A step that hangs on purpose (to be cancelled, or ended by"
            " its timeout) needs advance(..., settle=False), and what it waits for has to come from the test"
        )


def _doing(steps: frozenset[str]) -> str:
    return f"is in step {', '.join(sorted(steps))}" if steps else "is in its own code, between steps"
