"""A worker in a process of its own, for measurements whose client must not share one with it.

The child serves the workflows below until its input ends, and tells how it is whenever it reads a line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct, json

from perdure.app import App
from perdure.bench.target import loop_factory
from perdure.clock import moment
from perdure.context import sleep_until, wait_signal
from perdure.errors import PerdureError
from perdure.workflow import Workflow

GO = "go"
"""The signal that `listen` waits for. It carries the sender's `time.monotonic()`, which is the whole machine's."""

TIMEOUT = 60
"""Seconds after which a client gives up: then the worker is gone."""


class Workflows(Struct):
    """What the worker serves."""

    echo: Workflow[[str], str]
    rest: Workflow[[int], float]
    listen: Workflow[[str], float]


def define(app: App, queue: str) -> Workflows:
    """The workflows, alike in both processes."""

    @app.workflow(name="bench.echo", queue=queue)
    async def echo(payload: str) -> str:
        return payload

    @app.workflow(name="bench.rest", queue=queue)
    async def rest(until: int) -> float:
        """Sleeps until a time; returns how many milliseconds late it went on."""
        await sleep_until(moment(until))
        return time.time() * 1000 - until

    @app.workflow(name="bench.listen", queue=queue)
    async def listen(_: str) -> float:
        """Waits for a signal; returns how many milliseconds later it went on."""
        sent = await wait_signal(GO, float)
        return (time.monotonic() - sent) * 1000

    return Workflows(echo, rest, listen)


class Vitals(Struct):
    """How a worker's process is."""

    memory_bytes: int | None
    threads: int
    tasks: int


class WorkerProcess:
    """The parent's end of it."""

    def __init__(self, process: Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise PerdureError("a worker's process is asked and answers through pipes, which this one has not")
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout

    async def vitals(self) -> Vitals:
        """Asks the process; the first answer comes when the worker serves."""
        self._stdin.write(b"\n")
        line = await self._stdout.readline()
        if not line:
            raise PerdureError(f"the worker's process ended with {await self._process.wait()}; see its output above")
        return json.decode(line, type=Vitals)


@asynccontextmanager
async def worker_process(url: str, queue: str, concurrency: int) -> AsyncGenerator[WorkerProcess]:
    """A worker process that serves, until the block is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, url, queue, str(concurrency), stdin=PIPE, stdout=PIPE
    )
    worker = WorkerProcess(process)
    try:
        await worker.vitals()
        yield worker
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


async def _serve(url: str, queue: str, concurrency: int) -> None:
    async with App(url) as app:
        define(app, queue)
        async with app.worker(concurrency=concurrency, grace=1):
            while await asyncio.to_thread(sys.stdin.readline):
                vitals = Vitals(_resident_bytes(), threading.active_count(), len(asyncio.all_tasks()))
                sys.stdout.write(json.encode(vitals).decode() + "\n")
                sys.stdout.flush()


def _resident_bytes() -> int | None:
    """The memory that this process holds now, where the system tells (Linux)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
