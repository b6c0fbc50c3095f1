"""Tools of the tests of run semantics."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from perdure import App
from perdure.run import Run
from perdure.testing import Sandbox


def new_app(**options: Any) -> App:
    """An app that has no store before it is played."""
    return App("sqlite:////nowhere/at/all.db", **options)


class Gate:
    """Where a step stands still until the test lets it through; the test sees how many are there."""

    def __init__(self) -> None:
        self.arrived = 0
        self._came = asyncio.Event()
        self._open = asyncio.Event()

    async def pass_through(self) -> None:
        self.arrived += 1
        self._came.set()
        await self._open.wait()

    async def reached(self, times: int = 1) -> None:
        """Waits until so many have come."""
        async with asyncio.timeout(10):
            while self.arrived < times:
                self._came.clear()
                await self._came.wait()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.clear()


class ThreadGate:
    """The same for code in threads."""

    def __init__(self) -> None:
        self.came = threading.Semaphore(0)
        self.opened = threading.Event()

    def pass_through(self) -> None:
        self.came.release()
        assert self.opened.wait(10), "the test never opened the gate"

    async def reached(self, times: int = 1) -> None:
        for _ in range(times):
            assert await asyncio.to_thread(self.came.acquire, timeout=10)


async def replay(sandbox: Sandbox) -> None:
    """Lets the worker die, and another one go on with its runs."""
    await sandbox.kill_worker()
    await sandbox.start_worker()


async def deploy(sandbox: Sandbox, app: App) -> None:
    """Puts a worker with other code in the place of the one that runs."""
    await sandbox.kill_worker()
    app.client, app.clock = sandbox.app.client, sandbox.app.clock
    sandbox.app = app
    await sandbox.start_worker()


async def keys(run: Run[Any]) -> list[str]:
    """The keys of what the run has behind it, in order."""
    return [event.key for event in await run.history()]


async def state(run: Run[Any]) -> str:
    return (await run.status()).state
