"""What a claim costs beside runs that are none of its business, and in a store without them."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import AsyncExitStack
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict

from perdure.bench.bare import DAY, BareWorker, Crowd, succeeded
from perdure.bench.report import Report
from perdure.bench.target import Target, new_queue, refuse_memory
from perdure.model import Scope, ScopeKind, Start
from perdure.stores import open_store
from perdure.stores.base import Store
from perdure.stores.exchange import CLAIM_LIMIT

_WORKFLOW = "bench.claim"
_PAUSED = "bench.paused"
_UNKNOWN = "bench.unknown"
_GROUP = "bench"
_SESSIONS = 50
_INPUT = '{"payload":""}'
_FINISHERS = 4
"""Loops that end runs side by side, so that they share commits."""


class Noise(Struct, frozen=True):
    """How many runs are in the way: owned by another worker, due tomorrow, ended, on another queue, of a full group, of
    a paused workflow, of one that nobody knows, of sessions that another worker owns."""

    claimed: int
    delayed: int
    finished: int
    other_queue: int
    held: int
    paused: int
    unknown: int
    other_session: int


class Meter:
    """Claims runs of a queue, and measures that."""

    def __init__(self, worker: BareWorker, batch: int) -> None:
        self._worker = worker
        self._batch = batch
        self.costs_ms: list[float] = []
        """Milliseconds for each claimed run, one figure for each exchange."""

    @classmethod
    async def ready(cls, store: Store, queue: str, runs: int, batch: int) -> Meter:
        """Makes runs that can be claimed, and a worker for them."""
        await store.enqueue([Start(f"{queue}-{number}", _WORKFLOW, queue, _INPUT) for number in range(runs)])
        return cls(await BareWorker.register(store, queue, [_WORKFLOW, _PAUSED], batch), batch)

    async def measure(self) -> None:
        """Claims a batch. That it is settled is not measured."""
        began = time.perf_counter()
        reply = await self._worker.exchange(slots=self._batch)
        self.costs_ms.append((time.perf_counter() - began) * 1000 / len(reply.claims))
        await self._worker.exchange(settles=[succeeded(claim) for claim in reply.claims])

    async def cost_ms(self) -> float:
        """The median, when all is measured."""
        await self._worker.retire()
        return median(self.costs_ms)


async def measure(target: Target, quiet_target: Target | None, noise: Noise, runs: int, batch: int) -> Report:
    """Measures beside the noise and without it: in turns, one exchange here and one there, when there is another, empty
    store to compare with; else first without and then beside it."""
    refuse_memory(target)
    batch = min(batch, CLAIM_LIMIT)
    exchanges = max(1, runs // batch)
    warm_up = max(1, exchanges // 10)
    runs = (exchanges + warm_up) * batch
    queue = new_queue()
    async with AsyncExitStack() as stack:
        store = await _opened(stack, target)
        quiet_store = store if quiet_target is None else await _opened(stack, quiet_target)
        quiet = await Meter.ready(quiet_store, new_queue(), runs, batch)
        if quiet_target is None:
            await _take_turns([quiet], exchanges, warm_up)
        began = time.perf_counter()
        crowd, holder = await _make(store, queue, noise)
        if not target.temporary:
            stack.push_async_callback(crowd.end)
            stack.push_async_callback(holder.retire)
        took = time.perf_counter() - began
        # What making them left to be done (a log to write back, garbage) is not part of a claim.
        await store.close()
        await store.open()
        gc.collect()
        noisy = await Meter.ready(store, queue, runs, batch)
        await _take_turns([noisy] if quiet_target is None else [noisy, quiet], exchanges, warm_up)
        beside, alone = await noisy.cost_ms(), await quiet.cost_ms()
    return Report(
        "claim",
        target.url,
        {**asdict(noise), "runs": exchanges * batch, "batch": batch},
        {
            "claim_ms": round(beside, 5),
            "claim_ms_empty": round(alone, 5),
            "ratio": round(beside / alone, 3),
            "prepared_in_s": round(took, 1),
        },
        "Milliseconds for each run that is claimed, in exchanges that claim a batch, beside the runs above and in a"
        " store without them; a ratio near 1 says that they don't matter.",
    )


async def _take_turns(meters: list[Meter], exchanges: int, warm_up: int) -> None:
    """Whatever else the machine does at a time, it does to all of them."""
    for number in range(warm_up + exchanges):
        for meter in meters:
            if number == warm_up:
                meter.costs_ms.clear()
            await meter.measure()


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
    holder = await BareWorker.register(store, queue, [_WORKFLOW], max(1, noise.claimed), sessions=_SESSIONS)
    await holder.claim(noise.claimed)
    await _hold(store, crowd, holder, noise)
    await crowd.add(noise.delayed, _INPUT, delay=DAY)
    await crowd.add(noise.other_queue, _INPUT, queue=new_queue())
    return crowd, holder


async def _hold(store: Store, crowd: Crowd, holder: BareWorker, noise: Noise) -> None:
    """Makes the noise that is held. The first run of the group, and one of each session, are another worker's."""
    if noise.held:
        await crowd.add(1, _INPUT, group=_GROUP)
        await holder.claim(1)
        await crowd.add(noise.held, _INPUT, group=_GROUP)
    if noise.other_session:
        sessions = [f"session-{number}" for number in range(min(_SESSIONS, noise.other_session))]
        for session in sessions:
            await crowd.add(1, _INPUT, session=session)
        await holder.claim(len(sessions))
        for number, session in enumerate(sessions):
            runs = noise.other_session // len(sessions) + (number < noise.other_session % len(sessions))
            await crowd.add(runs, _INPUT, session=session)
    if noise.paused:
        await store.pause(Scope(ScopeKind.WORKFLOW, _PAUSED), "bench")
        await crowd.add(noise.paused, _INPUT, workflow=_PAUSED)
    await crowd.add(noise.unknown, _INPUT, workflow=_UNKNOWN)


async def _finish(store: Store, queue: str) -> None:
    """Ends what is ready, with the same claims and settles that a worker makes."""
    worker = await BareWorker.register(store, queue, [_WORKFLOW], CLAIM_LIMIT)
    reply = await worker.exchange(slots=CLAIM_LIMIT)
    while reply.claims:
        reply = await worker.exchange(settles=[succeeded(claim) for claim in reply.claims], slots=CLAIM_LIMIT)
    await worker.retire()
