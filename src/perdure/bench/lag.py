"""How late a worker's event loop is while very many of its runs are under way."""

from __future__ import annotations

import asyncio
import random
import threading

from perdure.app import App
from perdure.bench.report import Report, Ticker, percentile
from perdure.bench.target import Target, new_queue
from perdure.step import step
from perdure.workflow import Workflow


class Gate:
    """Opens when all runs have come to their step; then each of these takes a time of its own."""

    def __init__(self, runs: int, seconds: float) -> None:
        self._awaited = runs
        self._seconds = seconds
        self.full = asyncio.Event()
        self.threads = 0

    async def pass_through(self) -> None:
        self._awaited -= 1
        if not self._awaited:
            self.threads = threading.active_count()
            self.full.set()
        await self.full.wait()
        await asyncio.sleep(random.uniform(0, self._seconds))


def define(app: App, queue: str, gate: Gate) -> Workflow[[int], int]:
    """A workflow that waits in a step for all others."""

    @step(name="bench.wait")
    async def wait_for_all(number: int) -> int:
        await gate.pass_through()
        return number

    @app.workflow(name="bench.lag", queue=queue)
    async def lag(number: int) -> int:
        return await wait_for_all(number)

    return lag


async def measure(target: Target, runs: int, seconds: float) -> Report:
    """Has all runs execute at once in one worker, each awaiting a step, and lets the steps end over some seconds."""
    queue = new_queue()
    gate = Gate(runs, seconds)
    async with App(target.url) as app:
        workflow = define(app, queue, gate)
        handles = await workflow.start_many(range(runs))
        async with app.worker(queues=[queue], concurrency=runs):
            async with Ticker() as starting:
                await gate.full.wait()
            async with Ticker() as ending:
                await asyncio.gather(*(run.result() for run in handles))
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
            "threads": gate.threads,
        },
        "Milliseconds that the worker's event loop was late, from the first claim to the last result: while it took on"
        " all the runs (starting), and while their steps ended and were kept (ending). threads are those of the whole"
        " process while all runs were under way.",
    )
