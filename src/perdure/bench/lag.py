"""How late a worker's event loop is while very many of its runs are under way."""

from __future__ import annotations

import asyncio
import threading

from perdure.app import App
from perdure.bench.drain import Drained
from perdure.bench.report import Report, Ticker, percentile
from perdure.bench.target import Target, new_queue
from perdure.step import step
from perdure.workflow import Workflow

_TICK = 0.01


class Gate:
    """Holds steps until all runs have come to theirs, then lets them through one after another."""

    def __init__(self, runs: int) -> None:
        self.full = asyncio.Event()
        self._runs = runs
        self._held: list[asyncio.Future[None]] = []

    async def pass_through(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append(future)
        if len(self._held) == self._runs:
            self.full.set()
        await future

    async def open(self, seconds: float) -> None:
        """Lets all of them through, evenly over so many seconds: a crowd would hold up the loop by itself."""
        ticks = max(1, round(seconds / _TICK))
        for tick in range(ticks):
            for future in self._held[tick::ticks]:
                future.set_result(None)
            await asyncio.sleep(_TICK)


def define(app: App, queue: str, gate: Gate, drained: Drained) -> Workflow[[int], int]:
    """A workflow that waits in a step for all others."""

    @step(name="bench.wait")
    async def wait_for_all(number: int) -> int:
        await gate.pass_through()
        return number

    @app.workflow(name="bench.lag", queue=queue)
    async def lag(number: int) -> int:
        await wait_for_all(number)
        drained.count()
        return number

    return lag


async def measure(target: Target, runs: int, seconds: float) -> Report:
    """Has all runs execute at once in one worker, each awaiting a step, and lets the steps end over some seconds."""
    queue = new_queue()
    gate, drained = Gate(runs), Drained(runs, 1)
    async with App(target.url) as app:
        workflow = define(app, queue, gate, drained)
        await workflow.start_many(range(runs))
        async with app.worker(queues=[queue], concurrency=runs, grace=1):
            async with Ticker() as starting:
                await gate.full.wait()
            async with Ticker() as ending:
                threads = threading.active_count()
                await gate.open(seconds)
                await drained.all.wait()
    lags = starting.lags_ms + ending.lags_ms
    return Report(
        "lag",
        target.url,
        {"runs": runs, "seconds": seconds},
        {
            "lag_p50_ms": round(percentile(lags, 50), 3),
            "lag_p99_ms": round(percentile(lags, 99), 3),
            "lag_max_ms": round(max(lags), 3),
            "lag_p99_ms_starting": round(percentile(starting.lags_ms, 99), 3),
            "lag_p99_ms_ending": round(percentile(ending.lags_ms, 99), 3),
            "threads": threads,
        },
        "Milliseconds that the worker's event loop was late, from the first claim to the last result: while it took on"
        " all the runs (starting), and while their steps ended and were kept (ending). threads are those of the whole"
        " process while all runs were under way.",
    )
