"""Failed runs by their causes, and retrying many of them."""

from __future__ import annotations

import pytest

from conformance.kit import BILL, ManualClock, Worker, checkpoint, keys, record, start, worker
from perdure.causes import OVERDUE, POISONED
from perdure.model import FailureCause, Outcome, RunQuery, State
from perdure.stores.base import Store
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio

VALUE, KEY = "ValueError in pay", "KeyError in ship"


async def fail(store: Store, ada: Worker, id: str, cause: str | None, workflow: str = "ship") -> None:
    await store.enqueue([start(id, workflow=workflow)])
    await ada.settle(await ada.claim_one(), To.FAILED, '"boom"', cause=cause)


@pytest.fixture
async def failed(store: Store, ada: Worker, clock: ManualClock) -> None:
    """Three of one cause, two of another one, one of another workflow, one without, and one that was cancelled."""
    for id, cause in (("a", VALUE), ("b", KEY), ("c", VALUE), ("d", KEY), ("e", VALUE), ("f", None)):
        await fail(store, ada, id, cause)
        clock.advance(ms=1000)
    await fail(store, ada, "g", VALUE, BILL)
    await store.enqueue([start("h")])
    await store.cancel("h", "x")


@pytest.mark.usefixtures("failed")
async def test_failures_by_cause_most_first(store: Store, clock: ManualClock) -> None:
    begin = clock.now() - 6000
    found = await store.failures(RunQuery())
    assert found[:2] == [
        FailureCause("ship", VALUE, 3, begin + 4000, "e"),
        FailureCause("ship", KEY, 2, begin + 3000, "d"),
    ]
    assert sorted((each.workflow, each.cause, each.runs) for each in found[2:]) == [(BILL, VALUE, 1), ("ship", "", 1)]
    assert [each.cause for each in await store.failures(RunQuery(workflow=BILL))] == [VALUE]
    assert len(await store.failures(RunQuery(limit=1))) == 1


@pytest.mark.usefixtures("failed")
async def test_lists_by_cause(store: Store) -> None:
    async def found(**query: object) -> list[str]:
        return [run.id for run in await store.runs(RunQuery(oldest_first=True, **query))]  # type: ignore[arg-type]

    assert await found(cause=VALUE) == ["a", "c", "e", "g"]
    assert await found(cause=VALUE, workflow="ship") == ["a", "c", "e"]
    assert await found(cause="") == ["f"]
    assert await found(cause="nothing") == []
    run = await record(store, "a")
    assert (run.cause, run.state) == (VALUE, State.FAILED)
    assert (await record(store, "f")).cause is None
    after = run.position
    assert [run.id for run in await store.runs(RunQuery(cause=VALUE, oldest_first=True, after=after, limit=2))] == [
        "c",
        "e",
    ]


@pytest.mark.usefixtures("failed")
async def test_retrying_by_filter(store: Store, ada: Worker) -> None:
    query = RunQuery(cause=VALUE, limit=3, oldest_first=True)
    assert await store.retry_many(query, dry_run=True) == ["a", "c", "e"]
    assert (await record(store, "a")).state == State.FAILED
    assert await store.retry_many(query) == ["a", "c", "e"]
    run = await record(store, "a")
    assert (run.state, run.attempt, run.cause, run.body, run.finished_at) == (State.QUEUED, 2, None, None, None)
    assert await store.retry_many(query) == ["g"]
    assert await store.retry_many(query) == []
    assert len(await ada.claim()) == 4


@pytest.mark.usefixtures("failed")
async def test_what_is_retried_is_failed_unless_the_query_says_cancelled(store: Store) -> None:
    assert len(await store.retry_many(RunQuery(), dry_run=True)) == 7
    assert await store.retry_many(RunQuery(states=[State.CANCELLED]), dry_run=True) == ["h"]
    both = RunQuery(states=[State.CANCELLED, State.FAILED, State.SUCCEEDED, State.QUEUED])
    assert len(await store.retry_many(both, dry_run=True)) == 8
    assert await store.retry_many(RunQuery(states=[State.SUCCEEDED, State.RUNNING])) == []


async def test_a_retry_of_many_clears_errors_alone(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("good"), checkpoint("bad", outcome=Outcome.ERROR))
    await ada.settle(claim, To.FAILED, '"x"', cause=VALUE)
    assert await store.retry_many(RunQuery()) == ["a"]
    assert await keys(store, "a") == ["good"]


async def test_runs_that_the_store_ends_have_a_cause(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("poison", max_crashes=1), start("late", timeout=1000, delay=10)])
    await ada.claim_one()
    await store.bury(ada.name)
    clock.advance(ms=5000)
    bob = await worker(store)
    await bob.exchange()
    assert (await record(store, "poison")).cause == POISONED
    assert (await record(store, "late")).cause == OVERDUE
    assert {each.cause for each in await store.failures(RunQuery())} == {POISONED, OVERDUE}


async def test_a_cause_is_of_failures_alone(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a"), start("b"), start("c")])
    for claim, to in zip(await ada.claim(), (To.SUCCEEDED, To.CANCELLED, To.RETRY), strict=True):
        await ada.settle(claim, to, '"x"', cause=VALUE)
    assert await store.failures(RunQuery()) == []
