"""A program of a user's: a worker or a client, in a process of its own.

`program.py worker OPTIONS` serves until SIGTERM; `program.py start OPTIONS` starts runs. OPTIONS are JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from faults.flows import Flows, log
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
        log("serving")
        await ended.wait()
    log("ended")


def tell(loop: asyncio.AbstractEventLoop) -> None:
    """Writes down what this process holds: tasks, threads, open files, kilobytes."""
    files = len(os.listdir("/proc/self/fd"))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    log("holds", len(asyncio.all_tasks(loop)), threading.active_count(), files, memory)


async def start(options: dict[str, Any]) -> None:
    """Starts journeys, `many` with one call, as often as `times` says; tells what came of each call."""
    async with app:
        log("starting")
        for number in range(options.get("times", 1)):
            try:
                await flows.journey.start_many(range(options["many"]))
                log("started", number)
            except Exception as error:
                log("refused", number, type(error).__name__, str(error).replace(" ", "_"))


if __name__ == "__main__":
    logging.basicConfig(level="WARNING", stream=sys.stderr)
    asyncio.run({"worker": worker, "start": start}[sys.argv[1]](json.loads(sys.argv[2])))
