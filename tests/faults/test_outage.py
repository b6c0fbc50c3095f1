"""The store goes away for a while: nothing is lost, and every loop works again soon after it is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from faults.broken import Switched
from faults.flows import journey_result
from faults.kit import World, until
from perdure.errors import StoreUnavailable
from perdure.model import State
from perdure.stores.base import Store

pytestmark = pytest.mark.anyio

AWAY = 4.0
"""Seconds: long enough that every loop has come to its longest pause between two tries."""

SOON = 2.0
SLACK = 1.0
"""For a machine that does other things as well."""


@pytest.fixture
async def switched(world: World) -> AsyncIterator[Switched]:
    """The store of the app in the test's process, with a switch."""
    switched = await world.behind(Switched)
    yield switched
    switched.again()


async def test_every_loop_works_again_within_two_seconds_after_an_outage(world: World, switched: Switched) -> None:
    async with world.app.worker(lease=60, grace=5, concurrency=10) as worker:
        held = await world.flows.holding.start("gate")
        await until(lambda: worker.running == 1, "the run is at work")
        before = await world.flows.journey.start_many(range(30))
        results = [asyncio.ensure_future(run.result(timeout=60)) for run in [*before, held]]
        await until(lambda: world.log.count("ran") > 10, "runs are at work")
        switched.off()
        with pytest.raises(StoreUnavailable, match="switched off"):
            await world.flows.leaf.start(1)
        await asyncio.sleep(AWAY)  # the outage itself
        assert {"exchange", "reclaim", "ended"} <= switched.failed.keys()
        assert not any(result.done() and result.exception() for result in results)
        world.open_gate("gate")
        switched.again()
        at = time.monotonic()
        fresh = await world.flows.leaf.start(1)
        assert await fresh.result(timeout=30) == 2
        assert time.monotonic() - at < SOON + SLACK
        await until(lambda: {"exchange", "reclaim", "ended"} <= switched.back.keys(), "every loop works")
        assert max(switched.back[verb] for verb in ("exchange", "reclaim", "ended")) < SOON + SLACK
        *values, _ = await asyncio.gather(*results)
    assert values == [journey_result(number) for number in range(30)]
    assert set(world.log.times_ran().values()) == {1}
    assert set(await world.states()) == {State.SUCCEEDED}
    assert {record.attempt for record in await world.records()} == {1}


async def test_a_lease_is_kept_again_after_an_outage_that_was_shorter(world: World, switched: Switched) -> None:
    async with world.app.worker(lease=3, grace=5) as worker:
        run = await world.flows.holding.start("gate")
        await until(lambda: worker.running == 1, "the run is at work")
        switched.off()
        await until(lambda: switched.failed["renew"] >= 2, "the lease could not be renewed")
        switched.again()
        await until(lambda: "renew" in switched.back, "the lease is renewed")
        assert switched.back["renew"] < SOON + SLACK
        world.open_gate("gate")
        await run.result(timeout=30)
        assert world.log.count("ran", run.id) == 1


async def test_after_an_outage_longer_than_the_lease_the_runs_go_on_once_more(world: World, switched: Switched) -> None:
    """Nobody else is there: the worker finds itself dead, or its lease still there. Either way the run ends."""
    async with world.app.worker(lease=0.5, grace=5) as worker:
        run = await world.flows.holding.start("gate")
        await until(lambda: worker.running == 1, "the run is at work")
        switched.off()
        other = await world.serving(lease=5)  # its store works: it takes the run over
        await until(lambda: world.log.count("ran", run.id, pid=other.pid), "the run goes on elsewhere")
        switched.again()
        await until(lambda: worker.running == 0, "the late worker let go of it")
        world.open_gate("gate", other)
        assert await run.result(timeout=30) == other.pid
        other.terminate()
        await other.ended()
        again = await world.flows.leaf.start(1)
        assert await again.result(timeout=30) == 2  # by the late worker, under a new incarnation


async def test_after_an_outage_that_held_up_all_the_first_one_back_takes_nothing_from_the_others(
    world: World, switched: Switched
) -> None:
    async with world.app.worker(lease=1, grace=5), world.app.worker(lease=1, grace=5):
        runs = await world.flows.holding.start_many([("gate", False)] * 4)
        await until(lambda: world.log.count("ran") == 4, "the runs are at work")
        switched.off()
        store = switched.store
        await until(lambda: _are_dead(store), "the leases have ended")
        await until(lambda: switched.failed["reclaim"] >= 2, "both would have taken back")
        switched.dead_verbs = {"renew"}
        switched.again()  # as if all of their renewals came a little later
        switched.failed.clear()
        await until(lambda: switched.failed["renew"] >= 8, "they try to renew")
        switched.dead_verbs = set()
        world.open_gate("gate")
        await asyncio.gather(*(run.result(timeout=30) for run in runs))
    assert {record.attempt for record in await world.records()} == {1}
    assert set(world.log.times_ran().values()) == {1}


async def _are_dead(store: Store) -> bool:
    return not await store.workers()


async def test_replay_waits_for_a_store_that_is_away(world: World, switched: Switched) -> None:
    """A run with more behind it than one page goes on from its history, whenever that can be read."""
    worker = world.app.worker(lease=60, grace=0, concurrency=1)
    await worker.start()
    run = await world.flows.long_past.start(300)
    await until(lambda: world.log.count("ran", run.id) == 301, "the run has a past")
    await worker.stop()
    switched.dead_verbs = {"history"}
    await worker.start()
    await until(lambda: switched.failed["history"] >= 2, "replay could not be read")
    assert (await world.record(run.id)).state is State.RUNNING
    switched.dead_verbs = set()
    world.open_gate("gate")
    await run.result(timeout=30)
    await worker.stop()
    assert world.log.count("ran", run.id) == 302  # only the step that was handed back


async def test_stopping_during_an_outage_takes_the_grace_and_a_few_seconds(world: World, switched: Switched) -> None:
    worker = world.app.worker(lease=2, grace=1)
    await worker.start()
    run = await world.flows.holding.start("gate")
    await until(lambda: worker.running == 1, "the run is at work")
    switched.off()
    began = time.monotonic()
    async with asyncio.timeout(30):
        await worker.stop()
    assert time.monotonic() - began < 1 + 10
    assert world.log.count("cancelled", run.id) == 1
    switched.again()
    world.open_gate("gate")
    heir = await world.serving(lease=2)
    assert await run.result(timeout=30) == heir.pid


async def test_a_worker_does_not_start_on_a_store_that_is_away(world: World, switched: Switched) -> None:
    switched.off()
    worker = world.app.worker()
    with pytest.raises(StoreUnavailable, match="switched off"):
        await worker.start()
    switched.again()
    async with worker:
        run = await world.flows.leaf.start(1)
        assert await run.result(timeout=30) == 2


@pytest.mark.parametrize("verb", ["subscribe", "ended", "missing"])
async def test_results_are_waited_for_through_an_outage(world: World, switched: Switched, verb: str) -> None:
    async with world.app.worker(grace=5):
        switched.dead_verbs = {verb}
        run = await world.flows.leaf.start(1)
        result = asyncio.ensure_future(run.result(timeout=30))
        await until(lambda: switched.failed[verb], "the look for results failed")
        switched.dead_verbs = set()
        assert await result == 2
