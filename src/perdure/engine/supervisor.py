"""Several worker processes under one parent: started, restarted when they die, and their runs handed back at once.

The lease is for deaths that nobody saw. Here the parent sees them, and buries the worker's name in the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex

from perdure.errors import PerdureError, StoreUnavailable
from perdure.stores.base import Store

logger = logging.getLogger("perdure.supervisor")

MARGIN = 8.0
"""Seconds that a process gets beyond its grace to leave the store and end, before it is killed. A store that does not
answer costs it some four, threads of the user's that don't end three more."""

_LONG_LIFE = 10.0
"""Seconds after which a death has nothing to do with the one before."""
_LONGEST_PAUSE = 30.0
_BURY_TIMEOUT = 10.0
_LAST_BURY_TIMEOUT = 2.0
"""Seconds for handing back what is left when all processes have ended and no more are started."""


class Child:
    """A process whose standard input is its lifeline: it stops gracefully when that ends.

    It ends when `stop` closes it, and also when this process is no more, however it ended: so no child outlives its
    parent for longer than its grace. Works the same on every system.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self.ended = asyncio.ensure_future(process.wait())
        """The exit code, once there is one; negative for a signal."""
        self._process = process

    @classmethod
    async def spawn(cls, name: str, command: Sequence[str]) -> Child:
        """Starts a process, out of reach of the Ctrl-C of a terminal: its parent tells it what to do."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, start_new_session=sys.platform != "win32"
        )
        return cls(name, process)

    def stop(self) -> None:
        """Asks it to end gracefully."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def end(self, grace: float, hurry: asyncio.Event) -> int:
        """Stops it; kills it when it has not ended a little after its grace, or after `hurry`. Gives its exit code."""
        self.stop()
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({self.ended, hurried}, timeout=grace + MARGIN, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if hurry.is_set() and not self.ended.done():
            self._process.terminate()
            await asyncio.wait({self.ended}, timeout=MARGIN)
        if not self.ended.done():
            logger.warning("process %d does not end; it is killed", self.pid)
            self._process.kill()
        return await self.ended


class Supervisor:
    """Keeps a number of worker processes alive until it is stopped.

    - `command`: what to run for a worker of the name that it is given.
    - `store`: opens the store (once), for burying.
    - `grace`: seconds that the processes give their runs when they stop.
    """

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        store: Callable[[], Awaitable[Store]],
        *,
        processes: int,
        grace: float,
    ) -> None:
        self._command = command
        self._store = store
        self._processes = processes
        self._grace = grace
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._burials: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Stops all processes gracefully; `run` returns when they have ended."""
        self._stopping.set()

    def hurry(self) -> None:
        """Stops them at once: runs in flight are handed back."""
        self._stopping.set()
        self._hurry.set()

    async def run(self) -> None:
        """Starts the processes and keeps their number until stopped."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, self._processes + 1):
                tasks.create_task(self._keep(number))
        if self._burials:
            _, late = await asyncio.wait(self._burials, timeout=_LAST_BURY_TIMEOUT)
            for burial in late:
                logger.warning(
                    "the store does not answer; the runs of %s are free when its lease ends", burial.get_name()
                )
                burial.cancel()

    async def _keep(self, number: int) -> None:
        """One place among the processes: whoever dies in it gets a successor."""
        loop = asyncio.get_running_loop()
        early_deaths = 0
        while not self._stopping.is_set():
            began = loop.time()
            died = await self._live(number)
            early_deaths = early_deaths + 1 if died and loop.time() - began < _LONG_LIFE else 0
            await self._pause(pause_after(early_deaths) * random.uniform(0.5, 1.0))

    async def _live(self, number: int) -> bool:
        """The life of one process; tells whether it ended in another way than it should."""
        name = f"{socket.gethostname()}-{os.getpid()}-{number}-{token_hex(4)}"
        try:
            child = await Child.spawn(name, self._command(name))
        except OSError as error:
            logger.error("worker %d can't be started: %s", number, error)
            return True
        logger.debug("worker %d is process %d (%s)", number, child.pid, name)
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({child.ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        code = await (child.ended if child.ended.done() else child.end(self._grace, self._hurry))
        ended_well = code == 0 and self._stopping.is_set()
        if not ended_well:
            logger.warning("worker %d (process %d) %s", number, child.pid, how_it_ended(code))
        # Beside the successor's start, which neither waits for the store nor depends on it. Whatever the exit code
        # says: it is the user's code that may have ended the process. Of one that has left there is nothing to bury.
        burial = asyncio.create_task(self._hand_back(number, name), name=f"worker {number}")
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)
        return not ended_well

    async def _hand_back(self, number: int, name: str) -> None:
        """Gives the runs of a dead worker to others; what can't be done now is left to the end of its lease."""
        delay = 0.1
        while True:
            try:
                async with asyncio.timeout(_BURY_TIMEOUT):
                    count = await bury(await self._store(), name)
            except (StoreUnavailable, TimeoutError) as error:
                if self._stopping.is_set():
                    logger.warning("the runs of worker %d are free when its lease ends (%s)", number, error)
                    return
                await self._pause(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, 2.0)
            except PerdureError as error:
                logger.error("the runs of worker %d are free when its lease ends (%s)", number, error)
                return
            else:
                logger.log(logging.WARNING if count else logging.DEBUG, "handed back %d of its runs", count)
                return

    async def _pause(self, seconds: float) -> None:
        """Waits, but not any longer than until the stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


async def bury(store: Store, name: str) -> int:
    """Takes back the runs of all incarnations of a dead worker; returns how many.

    One that was declared dead, and lived, went on under its name with a number behind it.
    """
    later = [worker.name for worker in await store.workers() if worker.name.startswith(f"{name}.")]
    return sum([await store.bury(each) for each in [name, *later]])


def pause_after(early_deaths: int) -> float:
    """The longest pause, in seconds, before the next start. The first death costs nothing; it never gives up."""
    return 0.0 if early_deaths < 2 else min(_LONGEST_PAUSE, 0.25 * 2 ** min(early_deaths - 2, 10))


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
