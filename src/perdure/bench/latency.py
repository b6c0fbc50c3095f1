"""How long it takes from a start to its result, when the worker has nothing else to do."""

from __future__ import annotations

import time

from perdure.app import App
from perdure.bench.report import Report, percentile
from perdure.bench.target import Target, new_queue, refuse_memory
from perdure.bench.worker import TIMEOUT, define, worker_process

_WARM_UP = 50


async def measure(target: Target, runs: int, payload_bytes: int) -> Report:
    """Starts runs one after another, each when the result of the one before is there."""
    refuse_memory(target)
    queue = new_queue()
    payload = "x" * payload_bytes
    took: list[float] = []
    async with App(target.url) as app, worker_process(target.url, queue, concurrency=50):
        echo = define(app, queue).echo
        for number in range(min(_WARM_UP, runs) + runs):
            began = time.perf_counter()
            run = await echo.start(payload)
            await run.result(timeout=TIMEOUT)
            if number >= min(_WARM_UP, runs):
                took.append((time.perf_counter() - began) * 1000)
    return Report(
        "latency",
        target.url,
        {"runs": runs, "payload_bytes": payload_bytes},
        {f"p{percent}_ms": round(percentile(took, percent), 3) for percent in (50, 95, 99)},
        "Milliseconds from start to result, with client and worker in two processes. Two commits lie between them.",
    )
