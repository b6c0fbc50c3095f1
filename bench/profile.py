"""Where the processor time of a worker goes while it drains runs, by part.

    PYTHONPATH=src python bench/profile.py [--url URL] [--runs 60000] [--steps 0]

Looks each millisecond of processor time at the code that the main thread runs: what is in none of the parts counts for
the event loop, which switches tasks, reads and writes sockets, and, on SQLite, is interrupted by the store's threads.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType

import uvloop

from perdure import App, step

PERIOD = 0.001
PARTS = {
    "/perdure/stores/": "store: arguments, replies",
    "/asyncpg/": "store: driver",
    "/perdure/codec": "values",
    "/perdure/signature": "values",
    "/perdure/values": "values",
    "/perdure/engine/pump": "exchanges",
    "/perdure/engine/fitting": "exchanges",
    "/perdure/engine/": "engine: life of a run, steps",
    "/perdure/": "calls of steps and workflows",
    __file__: "the function of the run",
}
LOOP = "event loop: tasks, sockets"


class Profile:
    """Counts where the processor is, in this thread."""

    def __init__(self) -> None:
        self.parts: Counter[str] = Counter()

    def look(self, _: int, frame: FrameType | None) -> None:
        file = "" if frame is None else frame.f_code.co_filename
        self.parts[next((name for part, name in PARTS.items() if part in file), LOOP)] += 1


async def drain(url: str, runs: int, steps: int) -> None:
    app, done, left = App(url), asyncio.Event(), runs

    @step
    async def work(number: int) -> int:
        return number

    @app.workflow
    async def flow(number: int) -> int:
        nonlocal left
        for _ in range(steps):
            await work(number)
        left -= 1
        if left == 0:
            done.set()
        return number

    profile = Profile()
    async with app:
        await flow.start_many(range(runs))
        async with app.worker(concurrency=50):
            signal.signal(signal.SIGPROF, profile.look)
            used, began = time.process_time(), time.perf_counter()
            signal.setitimer(signal.ITIMER_PROF, PERIOD, PERIOD)
            await done.wait()
            signal.setitimer(signal.ITIMER_PROF, 0)
            used, took = time.process_time() - used, time.perf_counter() - began
    print(f"{runs / took:,.0f} runs/s; {used / runs * 1e6:.1f} µs of the worker's processor for each run\n")
    print("| Part | µs for each run | Share |\n|---|---|---|")
    total = sum(profile.parts.values())
    for part, count in profile.parts.most_common():
        print(f"| {part} | {used / runs * 1e6 * count / total:.1f} | {100 * count / total:.0f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the processor time of a worker goes.")
    parser.add_argument("--url", help="a store that is there; a SQLite file without it")
    parser.add_argument("--runs", type=int, default=60_000)
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(drain(options.url or f"sqlite:///{Path(folder)}/profile.db", options.runs, options.steps))


if __name__ == "__main__":
    main()
