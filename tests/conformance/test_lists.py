"""What clients and operators read: one run, pages of runs, counts, workers, and the place in the queue."""

from __future__ import annotations

import pytest

from conformance.conftest import Backend, MakeStore
from conformance.kit import (
    BILL,
    DAY,
    DEFAULT,
    LEASE,
    SHIP,
    URGENT,
    ManualClock,
    Worker,
    enqueue_one_by_one,
    for_signal,
    of_workflow,
    record,
    settle,
    start,
    worker,
)
from perdure.model import Count, RunQuery, State
from perdure.stores.base import Severity, Store
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio


async def listed(store: Store, query: RunQuery) -> list[str]:
    return [run.id for run in await store.runs(query)]


async def pages(store: Store, query: RunQuery) -> list[str]:
    """Reads all pages of a list."""
    seen: list[str] = []
    while page := await store.runs(query):
        assert len(page) <= query.limit
        seen += [run.id for run in page]
        query.after = page[-1].position
    return seen


async def one_of_each_state(store: Store, ada: Worker) -> dict[State, str]:
    """Runs in all states; their ids are the states' names."""
    await store.enqueue([start(state.value) for state in State if state != State.SCHEDULED])
    await store.enqueue([start(State.SCHEDULED.value, delay=DAY)])
    claims = {claim.id: claim for claim in await ada.claim(6)}
    outcomes = {"succeeded": To.SUCCEEDED, "failed": To.FAILED, "cancelled": To.CANCELLED, "queued": To.RELEASE}
    settles = [settle(claims[run_id], to, "1") for run_id, to in outcomes.items()]
    await ada.exchange(settles=[*settles, settle(claims["waiting"], To.PARK, waits=[for_signal()])])
    return {state: state.value for state in State}


async def test_a_run_that_is_not_there_is_none(store: Store) -> None:
    assert await store.load("missing") is None


async def test_a_list_shows_what_a_look_at_each_run_shows(store: Store, ada: Worker) -> None:
    await one_of_each_state(store, ada)
    runs = await store.runs(RunQuery())
    assert {run.id: run.state.value for run in runs} == {state.value: state.value for state in State}
    assert runs == [await record(store, run.id) for run in runs]


async def test_the_newest_run_is_first_or_last(store: Store, clock: ManualClock) -> None:
    await enqueue_one_by_one(store, clock, [start(f"r{n}") for n in range(5)])
    assert await listed(store, RunQuery()) == ["r4", "r3", "r2", "r1", "r0"]
    assert await listed(store, RunQuery(oldest_first=True)) == ["r0", "r1", "r2", "r3", "r4"]
    assert await listed(store, RunQuery(limit=2)) == ["r4", "r3"]


async def test_a_list_is_filtered_by_state(store: Store, ada: Worker) -> None:
    await one_of_each_state(store, ada)
    for state in State:
        assert await listed(store, RunQuery(states=[state])) == [state.value]
    assert set(await listed(store, RunQuery(states=[State.FAILED, State.WAITING]))) == {"failed", "waiting"}


async def test_a_list_is_filtered_by_workflow_queue_and_parent(store: Store) -> None:
    await store.enqueue(
        [
            start("a", workflow=SHIP, queue=DEFAULT),
            start("b", workflow=BILL, queue=DEFAULT, parent="a"),
            start("c", workflow=BILL, queue=URGENT, parent="a"),
            start("d", workflow=SHIP, queue=URGENT, parent="b"),
        ]
    )
    assert await listed(store, RunQuery(workflow=BILL)) == ["c", "b"]
    assert await listed(store, RunQuery(queue=URGENT)) == ["d", "c"]
    assert await listed(store, RunQuery(parent="a", oldest_first=True)) == ["b", "c"]
    assert await listed(store, RunQuery(workflow=BILL, queue=URGENT, parent="a", states=[State.QUEUED])) == ["c"]
    assert await listed(store, RunQuery(workflow=SHIP, parent="a")) == []


@pytest.mark.parametrize("oldest_first", [True, False])
async def test_pages_show_each_run_once(store: Store, clock: ManualClock, oldest_first: bool) -> None:
    names = [f"r{n}" for n in range(95)]
    await enqueue_one_by_one(store, clock, [start(name) for name in names])
    seen = await pages(store, RunQuery(limit=10, oldest_first=oldest_first))
    assert seen == (names if oldest_first else names[::-1])


async def test_pages_stay_stable_while_new_runs_arrive(store: Store, ada: Worker, clock: ManualClock) -> None:
    await enqueue_one_by_one(store, clock, [start(f"r{n}") for n in range(20)])
    query, seen = RunQuery(limit=5), list[str]()
    while page := await store.runs(query):
        seen += [run.id for run in page]
        query.after = page[-1].position
        await store.enqueue([start() for _ in range(3)])
        await ada.settle(await ada.claim_one(), body="1")
    assert seen == [f"r{n}" for n in range(19, -1, -1)]


async def test_runs_of_thousands_match_a_filter_page_by_page(store: Store, clock: ManualClock) -> None:
    for n in range(0, 3000, 100):
        await store.enqueue([start(f"r{n}", workflow=BILL), *(start(f"r{n + k}") for k in range(1, 100))])
        clock.advance(ms=1)
    seen = await pages(store, RunQuery(workflow=BILL, limit=7, oldest_first=True))
    assert seen == [f"r{n}" for n in range(0, 3000, 100)]


async def test_runs_are_counted_by_queue_workflow_and_state(store: Store, ada: Worker) -> None:
    assert await store.counts() == []
    await store.enqueue([start() for _ in range(3)])
    claims = await ada.claim(2)
    await ada.settle(claims[0], body="1")
    await store.enqueue([start(workflow=BILL), start(queue=URGENT, delay=DAY)])
    counts = {(count.queue, count.workflow, count.state): count.runs for count in await store.counts()}
    assert {key: runs for key, runs in counts.items() if runs} == {
        (DEFAULT, SHIP, State.SUCCEEDED): 1,
        (DEFAULT, SHIP, State.RUNNING): 1,
        (DEFAULT, SHIP, State.QUEUED): 1,
        (DEFAULT, BILL, State.QUEUED): 1,
        (URGENT, SHIP, State.SCHEDULED): 1,
    }


async def test_counts_follow_each_transition(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", delay=100)])

    async def shown() -> list[Count]:
        return [count for count in await store.counts() if count.runs]

    assert await shown() == [Count(DEFAULT, SHIP, State.SCHEDULED, 1)]
    clock.advance(ms=100)
    claim = await ada.claim_one()
    assert await shown() == [Count(DEFAULT, SHIP, State.RUNNING, 1)]
    await ada.park(claim, for_signal())
    assert await shown() == [Count(DEFAULT, SHIP, State.WAITING, 1)]
    await store.cancel("r", "x")
    assert await shown() == [Count(DEFAULT, SHIP, State.CANCELLED, 1)]
    await store.retry("r")
    assert await shown() == [Count(DEFAULT, SHIP, State.QUEUED, 1)]


async def test_live_workers_are_listed_with_what_they_do(store: Store, clock: ManualClock) -> None:
    assert await store.workers() == []
    await store.enqueue([start(), start(), start()])
    served = await worker(store, name="w", queues=["default", "b,c"], workflows=["ship"], concurrency=7, lease=5000)
    claims = await served.claim(3)
    await served.settle(claims[0], body="1")
    [shown] = await store.workers()
    assert (shown.id, shown.name, shown.host, shown.pid) == (served.id, "w", "localhost", 4711)
    assert (sorted(shown.queues), shown.workflows, shown.concurrency) == (["b,c", "default"], ["ship"], 7)
    assert (shown.started_at, shown.lease_until, shown.running) == (clock.now(), clock.now() + 5000, 2)


async def test_a_worker_whose_lease_has_ended_is_not_listed(store: Store, ada: Worker, clock: ManualClock) -> None:
    clock.advance(ms=LEASE - 1)
    assert [live.id for live in await store.workers()] == [ada.id]
    clock.advance(ms=1)
    assert await store.workers() == []


@pytest.mark.one_partition("`ahead` of a run")
async def test_a_queued_run_knows_how_many_come_first(store: Store, ada: Worker) -> None:
    await store.enqueue(
        [
            start("first"),
            start("low", priority=5),
            start("other workflow", workflow=BILL),
            start("other queue", queue=URGENT),
            start("later", delay=DAY),
            start("r"),
            start("behind"),
            start("high", priority=-5),
        ]
    )
    assert await store.ahead("high") == 0
    assert await store.ahead("first") == 1
    assert await store.ahead("r") == 3
    assert await store.ahead("low") == 5
    await ada.claim(1)
    assert await store.ahead("r") == 2


@pytest.mark.one_partition("`ahead` of a run")
async def test_what_no_worker_takes_comes_before_nothing(store: Store, ada: Worker) -> None:
    await store.enqueue([start(workflow=BILL), start(workflow="unserved"), start(), start("r")])
    assert await store.ahead("r") == 2
    await store.pause(of_workflow(BILL), "ada")
    assert await store.ahead("r") == 1


@pytest.mark.one_partition("`ahead` of a run")
async def test_at_most_a_thousand_are_counted_ahead(store: Store, ada: Worker) -> None:
    await store.enqueue([start() for _ in range(1200)] + [start("r")])
    assert await store.ahead("r") == 1000


async def test_a_check_of_a_store_that_works_finds_no_problem(store: Store) -> None:
    await store.enqueue([start()])
    findings = await store.check()
    assert findings
    assert not [finding for finding in findings if finding.severity == Severity.PROBLEM]


async def test_a_store_that_is_up_to_date_has_nothing_to_migrate(store: Store) -> None:
    await store.enqueue([start("r")])
    await store.migrate()
    assert await store.migrate() == []
    assert (await store.pending(), await store.script()) == ([], "")
    assert await store.load("r") is not None


async def test_another_process_sees_what_was_committed(store: Store, other: Store) -> None:
    await store.enqueue([start("r", input='"é"')])
    assert await other.load("r") == await store.load("r")


async def test_what_was_stored_is_there_after_closing(make_store: MakeStore, backend: Backend) -> None:
    if not backend.shared:
        pytest.skip("this store lives as long as it is open")
    first = await make_store()
    await first.enqueue([start("r")])
    await first.close()
    second = await make_store()
    assert (await record(second, "r")).state == State.QUEUED
