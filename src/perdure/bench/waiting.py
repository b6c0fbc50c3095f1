"""What waiting runs cost, and how late they go on when what they wait for has come."""

from __future__ import annotations

import asyncio
import time

from msgspec import json

from perdure.app import App
from perdure.bench.bare import DAY, Crowd
from perdure.bench.report import Report, percentile
from perdure.bench.target import Target, new_queue, refuse_memory, stored_bytes
from perdure.bench.worker import GO, TIMEOUT, WorkerProcess, Workflows, define, worker_process
from perdure.model import State

_LOOK = 0.2
_PAUSE_MS = 10
"""Between two timers, so that each is late by itself alone."""


async def measure(target: Target, runs: int, wakes: int) -> Report:
    """Parks `runs`, half of them on timers and half on signals; then `wakes` more of each kind, which are woken."""
    refuse_memory(target)
    url, queue = target.url, new_queue()
    async with App(url) as app, worker_process(url, queue, concurrency=50) as worker:
        workflows = define(app, queue)
        store = await app.client.store()
        before, stored_before = await worker.vitals(), stored_bytes(url)
        sleepers = Crowd(store, workflows.rest.name, queue)
        listeners = Crowd(store, workflows.listen.name, queue)
        began = time.perf_counter()
        await sleepers.add(runs // 2, json.encode({"until": int(time.time() * 1000) + DAY}).decode())
        await listeners.add(runs - runs // 2, '{"_":""}')
        await _until_parked(app, worker, queue, runs)
        took = time.perf_counter() - began
        after, stored = await worker.vitals(), stored_bytes(url)
        timers = await _timers(workflows, wakes)
        signals = await _signals(app, worker, queue, workflows, runs, wakes)
        if not target.temporary:
            await sleepers.end()
            await listeners.end()
    return Report(
        "waiting",
        url,
        {"runs": runs, "wakes": wakes},
        {
            "bytes_per_run": None
            if stored is None or stored_before is None
            else round((stored - stored_before) / runs),
            "wake_lag_ms": round(percentile(timers, 50), 3),
            "wake_lag_p99_ms": round(percentile(timers, 99), 3),
            "signal_lag_ms": round(percentile(signals, 50), 3),
            "signal_lag_p99_ms": round(percentile(signals, 99), 3),
            "worker_memory_bytes": after.memory_bytes,
            "worker_memory_bytes_before": before.memory_bytes,
            "worker_threads": after.threads,
            "worker_threads_before": before.threads,
            "worker_tasks": after.tasks,
            "worker_tasks_before": before.tasks,
            "parked_per_second": round(runs / took, 1),
        },
        "bytes_per_run is what a waiting run takes up in the store; the worker_ figures say what the worker holds for"
        " all of them, before they came and while they wait. The lags are medians and 99th percentiles: how late runs"
        " went on after their timer, and after the call that signalled them.",
    )


async def _timers(workflows: Workflows, wakes: int) -> list[float]:
    """Has timers come due one after another, beginning when all of their runs are parked for certain."""
    first = int(time.time() * 1000) + 1000 + wakes
    runs = await workflows.rest.start_many(first + number * _PAUSE_MS for number in range(wakes))
    return list(await asyncio.gather(*(run.result(timeout=TIMEOUT) for run in runs)))


async def _signals(
    app: App, worker: WorkerProcess, queue: str, workflows: Workflows, parked: int, wakes: int
) -> list[float]:
    """Wakes runs one after another."""
    runs = await workflows.listen.start_many([""] * wakes)
    await _until_parked(app, worker, queue, parked + wakes)
    lags: list[float] = []
    for run in runs:
        await run.signal(GO, time.monotonic())
        lags.append(await run.result(timeout=TIMEOUT))
    return lags


async def _until_parked(app: App, worker: WorkerProcess, queue: str, runs: int) -> None:
    """Looks from time to time whether so many runs wait. Nothing tells that a run was parked."""
    while await _parked(app, queue) < runs:
        await worker.vitals()  # raises when the worker is gone
        await asyncio.sleep(_LOOK)


async def _parked(app: App, queue: str) -> int:
    counts = await app.counts()
    return sum(count.runs for count in counts if (count.queue, count.state) == (queue, State.WAITING))
