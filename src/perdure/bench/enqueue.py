"""How fast runs are made: many in one call, and one after another."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from perdure.app import App
from perdure.bench.report import Report
from perdure.bench.target import Target, new_queue
from perdure.bench.worker import define
from perdure.run import Run

_BATCH = 1000


async def measure(target: Target, runs: int, single: int, payload_bytes: int, repeat: int) -> Report:
    """Starts `runs` in bulk and `single` one by one, in turns; medians count. They are cancelled afterwards."""
    payload = "x" * payload_bytes
    bulk_rates: list[float] = []
    single_rates: list[float] = []
    async with App(target.url) as app:
        echo = define(app, new_queue()).echo
        await _end(await echo.start_many([payload] * 10))
        for _ in range(repeat):
            began = time.perf_counter()
            made = await echo.start_many([payload] * runs)
            bulk_rates.append(runs / (time.perf_counter() - began))
            began = time.perf_counter()
            made += [await echo.start(payload) for _ in range(single)]
            single_rates.append(single / (time.perf_counter() - began))
            if not target.temporary:
                await _end(made)
    return Report(
        "enqueue",
        target.url,
        {"runs": runs, "single": single, "payload_bytes": payload_bytes, "repeat": repeat},
        {"per_second": round(median(bulk_rates), 1), "single_per_second": round(median(single_rates), 1)},
        "Runs made in a second: per_second with one start_many for all of them, single_per_second with a start for"
        " each, awaited before the next.",
    )


async def _end(runs: list[Run[str]]) -> None:
    for first in range(0, len(runs), _BATCH):
        await asyncio.gather(*(run.cancel() for run in runs[first : first + _BATCH]))
