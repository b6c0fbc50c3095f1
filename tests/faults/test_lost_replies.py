"""Replies that are lost after the store has done what it was asked for: repeating is safe, and nothing leaks."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from faults.broken import Lossy
from faults.flows import journey_result
from faults.kit import World, persistently, until
from perdure import Run
from perdure.model import Signal, Start, State

pytestmark = pytest.mark.anyio

LEASE = 600.0
"""Nothing may need the end of a lease here: a run that was claimed and leaked would hang for that long."""


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_lost_replies_to_exchanges_cost_nothing_but_time(world: World, seed: int) -> None:
    lossy = await world.behind(lambda store: Lossy(store, seed))
    runs = 150
    children = len(range(0, runs, 7))
    handles = await start_journeys(world, runs)
    worker = world.app.worker(concurrency=20, lease=LEASE, grace=5)
    await persistently(worker.start)
    try:
        results = await asyncio.gather(*(handle.result(timeout=45) for handle in handles))
        await world.ended(runs + children)
        assert worker.running == 0
        await until(lambda: not worker.runtime.pump.owners, "the worker has forgotten all runs")
    finally:
        await worker.stop()
    assert results == [journey_result(number) for number in range(runs)]
    assert lossy.lost["exchange"] > 20
    ran = world.log.times_ran()
    assert set(ran.values()) == {1}  # no worker died: nothing ran twice
    assert ran.total() == 3 * runs + children
    assert Counter(record.attempt for record in await world.records()) == {1: runs + children}


async def start_journeys(world: World, runs: int) -> list[Run[int]]:
    return await asyncio.gather(*(persistently(lambda n=n: start(world, n)) for n in range(runs)))


async def start(world: World, number: int) -> Run[int]:
    return await world.flows.journey.options(id=f"j{number}").start(number)


async def test_a_signal_that_is_repeated_is_taken_once(world: World) -> None:
    lossy = await world.behind(lambda store: Lossy(store, 4, share=0.5))
    runs = [await persistently(lambda n=n: world.flows.asking.options(id=f"a{n}").start()) for n in range(30)]
    worker = world.app.worker(concurrency=10, lease=LEASE, grace=5)
    await persistently(worker.start)
    try:
        for value in range(3):
            for run in runs:
                signal = Signal(f"{run.id}-{value}", run.id, "number", str(value))
                await persistently(lambda signal=signal: lossy.signal(signal))
        for run in runs:
            assert await run.result(timeout=30) == [0, 1, 2]
    finally:
        await worker.stop()
    assert lossy.lost["signal"] > 10


async def test_an_enqueue_that_is_repeated_makes_its_runs_once(world: World) -> None:
    lossy = await world.behind(lambda store: Lossy(store, 5, share=0.5))
    for batch in range(20):
        starts = [Start(f"{batch}-{n}", "leaf", "default", f"[{n}]") for n in range(10)]
        await persistently(lambda starts=starts: lossy.enqueue(starts))
    assert lossy.lost["enqueue"] > 5
    assert await world.states() == {State.QUEUED: 200}


async def test_a_worker_ends_in_time_though_its_last_words_are_lost(world: World) -> None:
    await world.flows.holding.start("gate")
    await world.behind(lambda store: Lossy(store, 6, share=0.5))
    worker = world.app.worker(concurrency=5, lease=LEASE, grace=0)
    await persistently(worker.start)
    await until(lambda: worker.running, "the run is at work")
    await worker.stop()
    assert worker.running == 0
