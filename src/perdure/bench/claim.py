"""What a claim costs beside runs that are none of its business, and in a store without them."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict

from perdure.bench.bare import DAY, BareWorker, Crowd, succeeded
from perdure.bench.report import Report
from perdure.bench.target import Target, new_queue
from perdure.model import Start
from perdure.stores import open_store
from perdure.stores.base import CLAIM_LIMIT, Store

_WORKFLOW = "bench.claim"
_INPUT = '{"payload":""}'
_FINISHERS = 4
"""Loops that end runs side by side, so that they share commits."""


class Noise(Struct, frozen=True):
    """How many runs are in the way: owned by another worker, due tomorrow, ended, on another queue."""

    claimed: int
    delayed: int
    finished: int
    other_queue: int


class Meter:
    """Claims runs of a queue of its own, and measures that."""

    def __init__(self, store: Store, queue: str, batch: int) -> None:
        self._store = store
        self._queue = queue
        self._batch = batch
        self._made = 0
        self.costs_ms: list[float] = []
        """Milliseconds for each claimed run, one figure for each exchange."""

    async def measure(self, runs: int) -> None:
        """Makes runs and claims them in full batches. They are settled outside of what is measured."""
        await self._store.enqueue(
            [Start(f"{self._queue}-{self._made + number}", _WORKFLOW, self._queue, _INPUT) for number in range(runs)]
        )
        self._made += runs
        worker = await BareWorker.register(self._store, self._queue, [_WORKFLOW], self._batch)
        for _ in range(runs // self._batch):
            began = time.perf_counter()
            reply = await worker.exchange(slots=self._batch)
            self.costs_ms.append((time.perf_counter() - began) * 1000 / len(reply.claims))
            await worker.exchange(settles=[succeeded(claim) for claim in reply.claims])
        await worker.retire()


async def measure(
    target: Target, quiet_target: Target | None, noise: Noise, runs: int, batch: int, repeat: int
) -> Report:
    """Measures beside the noise and without it, in turns when there is another, empty store to compare with; else
    first without and then beside it."""
    batch = min(batch, CLAIM_LIMIT)
    runs = max(batch, runs - runs % batch)
    async with AsyncExitStack() as stack:
        store = await _opened(stack, target)
        queue = new_queue()
        noisy = Meter(store, queue, batch)
        quiet = Meter(store if quiet_target is None else await _opened(stack, quiet_target), new_queue(), batch)
        for _ in range(repeat if quiet_target is None else 1):
            await quiet.measure(runs)
        began = time.perf_counter()
        crowd, holder = await _make(store, queue, noise)
        if not target.temporary:
            stack.push_async_callback(crowd.end)
            stack.push_async_callback(holder.retire)
        took = time.perf_counter() - began
        await noisy.measure(runs)
        if quiet_target is not None:
            quiet.costs_ms.clear()
        noisy.costs_ms.clear()
        for _ in range(repeat):
            await noisy.measure(runs)
            if quiet_target is not None:
                await quiet.measure(runs)
    beside, alone = median(noisy.costs_ms), median(quiet.costs_ms)
    return Report(
        "claim",
        target.url,
        {**asdict(noise), "runs": runs, "batch": batch, "repeat": repeat},
        {
            "claim_ms": round(beside, 5),
            "claim_ms_empty": round(alone, 5),
            "ratio": round(beside / alone, 3),
            "prepared_in_s": round(took, 1),
        },
        "Milliseconds for each run that is claimed, in exchanges that claim a batch, beside the runs above and in a"
        " store without them; a ratio near 1 says that they don't matter.",
    )


async def _opened(stack: AsyncExitStack, target: Target) -> Store:
    store = open_store(target.url)
    await store.open()
    stack.push_async_callback(store.close)
    return store


async def _make(store: Store, queue: str, noise: Noise) -> tuple[Crowd, BareWorker]:
    """Makes the noise, on the queue that is measured but for what belongs elsewhere."""
    crowd = Crowd(store, _WORKFLOW, queue)
    await crowd.add(noise.finished, _INPUT)
    await asyncio.gather(*(_finish(store, queue) for _ in range(_FINISHERS)))
    await crowd.add(noise.claimed, _INPUT)
    holder = await BareWorker.register(store, queue, [_WORKFLOW], max(1, noise.claimed))
    await holder.claim(noise.claimed)
    await crowd.add(noise.delayed, _INPUT, delay=DAY)
    await crowd.add(noise.other_queue, _INPUT, queue=new_queue())
    return crowd, holder


async def _finish(store: Store, queue: str) -> None:
    """Ends what is ready, with the same claims and settles that a worker makes."""
    worker = await BareWorker.register(store, queue, [_WORKFLOW], CLAIM_LIMIT)
    reply = await worker.exchange(slots=CLAIM_LIMIT)
    while reply.claims:
        reply = await worker.exchange(settles=[succeeded(claim) for claim in reply.claims], slots=CLAIM_LIMIT)
    await worker.retire()
