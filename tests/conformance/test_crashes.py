"""Crashes: which of the runs of a dead worker is to blame, how long it stays away, and when it is given up."""

from __future__ import annotations

import pytest

from conformance.kit import (
    LEASE,
    ManualClock,
    Worker,
    for_run,
    ids,
    named,
    record,
    start,
    worker,
)
from perdure.blame import crash_backoff
from perdure.causes import poisoned
from perdure.model import State
from perdure.stores.base import Store
from perdure.stores.exchange import Claim

pytestmark = pytest.mark.anyio


async def crash(store: Store, run_id: str, *, times: int, clock: ManualClock) -> Claim | None:
    """Lets workers die with the run until it has crashed so often; then claims it, unless it has ended."""
    for _ in range(times):
        doomed = await worker(store)
        claim = await doomed.claim_one()
        assert claim.id == run_id
        await store.bury(doomed.name)
        clock.advance(ms=60_000)
    claims = await (await worker(store)).claim(1)
    return claims[0] if claims else None


async def test_the_first_crash_costs_no_time(store: Store, clock: ManualClock) -> None:
    await store.enqueue([start("r")])
    doomed = await worker(store)
    await doomed.claim_one()
    await store.bury(doomed.name)
    run = await record(store, "r")
    assert (run.state, run.wake_at) == (State.QUEUED, None)


@pytest.mark.parametrize("crashes", [2, 3, 4])
async def test_from_the_second_crash_on_a_run_stays_away_for_a_while(
    store: Store, clock: ManualClock, crashes: int
) -> None:
    await store.enqueue([start("r")])
    assert await crash(store, "r", times=crashes - 1, clock=clock)
    [doomed] = [live for live in await store.workers() if live.running]
    await store.bury(doomed.name)
    run = await record(store, "r")
    assert (run.crashes, run.attempt) == (crashes, crashes + 1)
    due = run.wake_at or clock.now()
    assert clock.now() <= due <= clock.now() + crash_backoff(crashes)
    clock.advance(ms=due - clock.now())
    claim = await (await worker(store)).claim_one()
    assert (claim.crashes, claim.cut_off) == (crashes, True)


async def test_runs_that_crashed_together_come_back_apart(store: Store, clock: ManualClock) -> None:
    await store.enqueue([start(f"r{n}") for n in range(30)])
    for _ in range(2):
        doomed = await worker(store)
        assert len(await doomed.claim()) == 30
        await store.bury(doomed.name)
    assert len({(await record(store, f"r{n}")).wake_at for n in range(30)}) > 5


async def test_a_run_that_ends_its_worker_too_often_fails(store: Store, clock: ManualClock) -> None:
    await store.enqueue([start("r", max_crashes=3)])
    assert await crash(store, "r", times=3, clock=clock) is None
    run = await record(store, "r")
    assert (run.state, run.crashes, run.body) == (State.FAILED, 3, poisoned(3))
    assert run.finished_at is not None and (run.wake_at, run.worker) == (None, None)


async def test_a_run_that_may_not_crash_at_all_fails_at_the_first(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("parent"), start("r", parent="parent", max_crashes=1)])
    parent, _ = named(await ada.claim(2), "parent", "r")
    await ada.park(parent, for_run("r"))
    await store.bury(ada.name)
    claim = await bob.claim_one()
    assert [(end.id, end.body) for end in claim.ended] == [("r", poisoned(1))]


async def test_the_blame_goes_to_those_that_crashed_most(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("bad")])
    await ada.claim_one()
    await store.bury(ada.name)
    await store.enqueue([start("good"), start("fine")])
    named(await bob.claim(), "bad", "good", "fine")
    await store.bury(bob.name)
    runs = [await record(store, run_id) for run_id in ("bad", "good", "fine")]
    assert [(run.crashes, run.attempt) for run in runs] == [(2, 3), (0, 2), (0, 2)]
    assert [run.state for run in runs[1:]] == [State.QUEUED, State.QUEUED]
    claims = await (await worker(store)).claim()
    assert all(claim.cut_off for claim in claims if claim.id in ("good", "fine"))


async def test_each_dead_worker_has_its_own_to_blame(store: Store, clock: ManualClock) -> None:
    await store.enqueue([start("bad")])
    first = await worker(store)
    await first.claim_one()
    await store.bury(first.name)
    await store.enqueue([start("good"), start("alone")])
    two, three = await worker(store), await worker(store)
    assert ids(await two.claim(2)) == ["bad", "good"]
    assert ids(await three.claim(2)) == ["alone"]
    clock.advance(ms=LEASE)
    assert (await store.reclaim()).count == 3
    crashes = {run_id: (await record(store, run_id)).crashes for run_id in ("bad", "good", "alone")}
    assert crashes == {"bad": 2, "good": 0, "alone": 1}
