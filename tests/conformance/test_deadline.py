"""Deadlines: a run that is not over in time ends as failed, whatever it was doing."""

from __future__ import annotations

import pytest

from conformance.kit import DAY, ManualClock, Worker, drain, for_run, for_signal, for_timer, ids, record, start
from perdure.causes import DEADLINE_PASSED, PARENT_DEADLINE_PASSED, deadline_exceeded
from perdure.model import Ended, Fire, Overlap, Schedule, State
from perdure.stores.base import Store
from perdure.stores.exchange import Cancelling, To

pytestmark = pytest.mark.anyio


async def test_a_deadline_counts_from_the_start(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", timeout=1000)])
    assert (await record(store, "r")).deadline == clock.now() + 1000
    assert (await ada.exchange()).next_at == clock.now() + 1000


async def test_a_deadline_of_a_delayed_run_counts_from_its_due_time(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("delay", delay=500, timeout=1000), start("at", at=clock.now() + 700, timeout=1000)])
    assert (await record(store, "delay")).deadline == clock.now() + 1500
    assert (await record(store, "at")).deadline == clock.now() + 1700
    assert (await ada.exchange()).next_at == clock.now() + 500


async def test_a_queued_run_fails_at_its_deadline_and_not_before(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", timeout=1000)])
    clock.advance(ms=999)
    await ada.exchange()
    assert (await record(store, "r")).state == State.QUEUED
    clock.advance(ms=1)
    reply = await ada.exchange(slots=5)
    assert (reply.claims, reply.next_at) == ([], None)
    run = await record(store, "r")
    assert (run.state, run.body, run.finished_at) == (State.FAILED, deadline_exceeded(), clock.now())


async def test_a_run_claimed_just_before_its_deadline_may_run(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", timeout=1000)])
    clock.advance(ms=999)
    assert ids(await ada.claim()) == ["r"]


async def test_a_waiting_run_fails_at_its_deadline(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", timeout=1000), start("x")])
    claim, _ = await ada.claim(2)
    await store.enqueue([start("x", delay=DAY)])
    await ada.park(claim, for_timer(clock.now() + DAY), for_signal(), for_run("x"))
    clock.advance(ms=1000)
    reply = await ada.exchange(slots=5)
    assert (reply.claims, reply.next_at) == ([], None)
    run = await record(store, "r")
    assert (run.state, run.body, run.waits) == (State.FAILED, deadline_exceeded(), [])


async def test_a_run_between_two_attempts_fails_at_its_deadline(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", timeout=1000)])
    await ada.settle(await ada.claim_one(), To.RETRY, '"boom"', delay=DAY)
    clock.advance(ms=1000)
    assert await ada.claim() == []
    assert await store.ended(["r"]) == [Ended("r", State.FAILED, deadline_exceeded())]


async def test_a_timer_that_is_due_with_the_deadline_does_not_save_the_run(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("r", timeout=1000)])
    await ada.park(await ada.claim_one(), for_timer(clock.now() + 1000))
    clock.advance(ms=1000)
    assert await ada.claim() == []
    assert (await record(store, "r")).state == State.FAILED


async def test_a_running_run_is_cancelled_at_its_deadline(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", timeout=1000)])
    claim = await ada.claim_one()
    clock.advance(ms=999)
    assert (await ada.exchange()).cancelled == []
    clock.advance(ms=1)
    for _ in range(2):
        reply = await ada.exchange()
        assert reply.cancelled == [(claim.token, Cancelling(DEADLINE_PASSED, deadline=True))]
        assert (reply.next_at, reply.more) == (None, False)
    run = await record(store, "r")
    assert run.state == State.RUNNING and run.cancelling
    reply = await ada.settle(claim, To.FAILED, deadline_exceeded())
    assert (reply.refused, reply.cancelled) == ([], [])
    assert (await record(store, "r")).state == State.FAILED


async def test_any_worker_notices_the_deadline_of_anyones_run(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("r", timeout=1000)])
    claim = await ada.claim_one()
    clock.advance(ms=1000)
    assert (await bob.exchange()).cancelled == []
    assert [token for token, _ in (await ada.exchange()).cancelled] == [claim.token]


async def test_a_run_that_fails_at_its_deadline_wakes_who_waits_for_it(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("parent"), start("child", delay=500, timeout=1000)])
    await ada.park(await ada.claim_one(), for_run("child"))
    clock.advance(ms=2000)
    claims = await drain(ada)
    assert [(claim.id, claim.ended) for claim in claims] == [
        ("parent", [Ended("child", State.FAILED, deadline_exceeded())])
    ]


async def test_a_claim_that_was_settled_in_time_has_met_its_deadline(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("r", timeout=1000)])
    claim = await ada.claim_one()
    clock.advance(ms=5000)
    await ada.settle(claim, body="1")
    assert await store.ended(["r"]) == [Ended("r", State.SUCCEEDED, "1")]


async def test_descendants_are_cancelled_at_the_deadline(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("root", timeout=1000), start("child", parent="root"), start("grown", parent="child")])
    root, child = await ada.claim(2)
    await ada.park(root, for_run("child"))
    clock.advance(ms=1000)
    await ada.exchange()
    assert (await record(store, "root")).state == State.FAILED
    assert (await record(store, "grown")).state == State.CANCELLED
    assert (await ada.exchange()).cancelled == [(child.token, Cancelling(PARENT_DEADLINE_PASSED))]


async def test_whatever_its_state_what_descends_from_a_run_whose_deadline_passed_is_cancelled(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("root", timeout=1000), start("running", parent="root")])
    await store.enqueue([start("waiting", parent="running"), start("queued", parent="running")])
    await store.enqueue([start("scheduled", parent="root", delay=DAY)])
    root, running, waiting = await ada.claim(3)
    await ada.park(waiting, for_signal())
    clock.advance(ms=1000)
    assert dict((await ada.exchange()).cancelled) == {
        root.token: Cancelling(DEADLINE_PASSED, deadline=True),
        running.token: Cancelling(PARENT_DEADLINE_PASSED),
    }
    for run_id in ("waiting", "queued", "scheduled"):
        run = await record(store, run_id)
        assert (run.state, run.body) == (State.CANCELLED, f'"{PARENT_DEADLINE_PASSED}"')
    assert (await record(store, "root")).cancelling == DEADLINE_PASSED
    assert (await record(store, "running")).cancelling == PARENT_DEADLINE_PASSED


async def test_a_descendant_that_is_late_itself_fails(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("root", timeout=1000), start("child", parent="root", timeout=900)])
    root, child = await ada.claim(2)
    clock.advance(ms=1000)
    late = Cancelling(DEADLINE_PASSED, deadline=True)
    assert dict((await ada.exchange()).cancelled) == {root.token: late, child.token: late}


async def test_why_a_run_is_cancelled_outlives_its_worker(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("root", timeout=1000), start("child", parent="root")])
    await ada.claim(2)
    clock.advance(ms=1000)
    await bob.exchange()
    await store.cancel("child", "of no use")
    await store.bury(ada.name)
    assert {claim.id: claim.cancelling for claim in await bob.claim(2)} == {
        "root": Cancelling(DEADLINE_PASSED, deadline=True),
        "child": Cancelling(PARENT_DEADLINE_PASSED),
    }


async def test_the_first_reason_stays(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", timeout=1000)])
    claim = await ada.claim_one()
    await store.cancel("r", "not wanted")
    clock.advance(ms=1000)
    assert (await ada.exchange()).cancelled == [(claim.token, Cancelling("not wanted"))]


async def test_a_retried_run_that_missed_its_deadline_is_cancelled_like_any_other(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("r", timeout=1000)])
    claim = await ada.claim_one()
    clock.advance(ms=1000)
    await ada.settle(claim, To.FAILED, deadline_exceeded())
    await store.retry("r")
    claim = await ada.claim_one()
    await store.cancel("r", "not wanted")
    assert (await ada.exchange()).cancelled == [(claim.token, Cancelling("not wanted"))]


async def test_thousands_of_deadlines_pass_in_bounded_steps(store: Store, ada: Worker, clock: ManualClock) -> None:
    overdue = [start(timeout=1000) for _ in range(2000)]
    await store.enqueue([*overdue, start("fresh")])
    clock.advance(ms=1000)
    claims = await drain(ada)
    reply = await ada.exchange()
    assert "fresh" in ids(claims) and not reply.more and reply.next_at is None
    ended = {end.id for end in await store.ended([each.id for each in overdue]) if end.body == deadline_exceeded()}
    told = {token for token, _ in reply.cancelled}
    for each in claims:
        assert each.id == "fresh" or each.token in told
    assert len(ended) + len(told) == 2000


@pytest.mark.parametrize("late", [False, True])
async def test_a_run_of_a_schedule_that_waited_begins_when_it_is_due_and_its_time_counts_from_then(
    store: Store, ada: Worker, clock: ManualClock, late: bool
) -> None:
    slot = clock.now()
    await store.put_schedule(Schedule(name="s", every=1000, start=start("")), slot, declared=True)
    await ada.exchange(fires=[Fire("s", slot, [start("first")], slot + 1000, Overlap.QUEUE)])
    claim = await ada.claim_one()
    clock.advance(ms=1000)
    due = clock.now() + 500
    second = start("second", at=due, timeout=1000)
    await ada.exchange(fires=[Fire("s", slot + 1000, [second], None, Overlap.QUEUE)])
    run = await record(store, "second")
    assert (run.state, run.deadline) == (State.WAITING, None)
    if late:
        clock.advance(ms=5000)
        await ada.exchange()
    await ada.settle(claim, body="1")
    run = await record(store, "second")
    assert run.state == (State.QUEUED if late else State.SCHEDULED)
    assert (run.wake_at, run.deadline) == ((None, clock.now() + 1000) if late else (due, due + 1000))
    clock.advance(ms=0 if late else 500)
    assert [claim.id for claim in await ada.claim()] == ["second"]
