"""A program of a user's: a worker or a client, in a process of its own.

`program.py worker OPTIONS` serves until SIGTERM; `program.py start OPTIONS` and
`program.py visit OPTIONS` start runs. OPTIONS are JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from faults.flows import LOG, Flows, log
from perdure import App

app = App(os.environ["FAULTS_URL"])
flows = Flows(app)


async def worker(options: dict[str, Any]) -> None:
    """Serves until it is asked to end."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: tell(loop))
    if (limit := options.pop("limit", None)) is not None:
        app.limits.declare(queue="limited", running=limit)
    if (every := options.pop("every", None)) is not None:
        app.schedule(every=every, name="leaves", args=(1,))(flows.leaf)
    async with app, app.worker(**options):
        log("serving", time.time())
        await ended.wait()
    log("ended")


def tell(loop: asyncio.AbstractEventLoop) -> None:
    """Writes down what this process holds: tasks, threads, open files, kilobytes of its own (mapped files apart)."""
    files = len(os.listdir("/proc/self/fd"))
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory = status["RssAnon"].split()[0]
    log("holds", len(asyncio.all_tasks(loop)), threading.active_count(), files, memory)


def lost_loop(options: dict[str, Any]) -> None:
    """A process that lives on though the event loop of its worker does not."""
    loop = asyncio.new_event_loop()
    worker = app.worker(**options)

    async def begin() -> None:
        await worker.start()
        while not Path(os.environ[LOG]).exists() or str(os.getpid()) not in Path(os.environ[LOG]).read_text():
            await asyncio.sleep(0.01)  # until its step has said that it began

    loop.run_until_complete(begin())
    loop.close()
    log("lost")
    time.sleep(3600)


async def start(options: dict[str, Any]) -> None:
    """Starts journeys, `many` with one call, as often as `times` says; tells what came of each call."""
    if options.get("user") is not None:
        await asyncio.to_thread(int)  # which imports what it needs, while the interpreter's files can be read
        os.setuid(options["user"])
    async with app:
        log("starting")
        for number in range(options.get("times", 1)):
            try:
                await flows.journey.start_many(range(options["many"]))
                log("started", number)
            except Exception as error:
                log("refused", number, type(error).__name__, str(error).replace(" ", "_"))


async def visit(options: dict[str, Any]) -> None:
    """Starts visits, each in one of nine groups or in none."""
    async with app:
        await flows.visiting.start_many((n, f"group-{n % 9}" if n % 3 else "") for n in options["numbers"])


if __name__ == "__main__":
    logging.basicConfig(level="WARNING", stream=sys.stderr)
    role, options = sys.argv[1], json.loads(sys.argv[2])
    if role == "lost_loop":
        lost_loop(options)
    else:
        asyncio.run({"worker": worker, "start": start, "visit": visit}[role](options))
