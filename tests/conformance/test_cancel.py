"""Cancelling: at once for what is not running, asked of the owner for what is, and descendants follow."""

from __future__ import annotations

import pytest

from conformance.kit import (
    DAY,
    EVERYTHING,
    SHIP,
    URGENT,
    ManualClock,
    Worker,
    checkpoint,
    for_run,
    for_signal,
    for_timer,
    ids,
    keys,
    message,
    named,
    of_group,
    of_queue,
    of_workflow,
    record,
    settle,
    start,
    worker,
)
from perdure.causes import DEADLINE_PASSED, OVERDUE, deadline_exceeded
from perdure.errors import RunEnded, RunNotFound
from perdure.model import Ended, Kind, Limits, Scope, State
from perdure.stores.base import Store
from perdure.stores.exchange import Cancelling, To

pytestmark = pytest.mark.anyio


async def assert_cancelled(store: Store, run_id: str, at: int) -> None:
    run = await record(store, run_id)
    assert (run.state, run.finished_at, run.wake_at, run.waits) == (State.CANCELLED, at, None, [])
    assert [end.state for end in await store.ended([run_id])] == [State.CANCELLED]


async def test_a_queued_run_ends_at_once(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r"), start("next")])
    assert await store.cancel("r", "not wanted") == State.CANCELLED
    await assert_cancelled(store, "r", clock.now())
    assert ids(await ada.claim()) == ["next"]


async def test_those_who_ask_for_the_outcome_learn_the_reason(store: Store) -> None:
    await store.enqueue([start("r")])
    await store.cancel("r", "not wanted")
    [end] = await store.ended(["r"])
    assert end.body is not None and "not wanted" in end.body


async def test_a_scheduled_run_ends_at_once_and_never_comes_due(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", delay=100, timeout=1000)])
    assert await store.cancel("r", "not wanted") == State.CANCELLED
    await assert_cancelled(store, "r", clock.now())
    assert (await ada.exchange()).next_at is None
    clock.advance(ms=DAY)
    assert await ada.claim() == []
    assert (await record(store, "r")).state == State.CANCELLED


async def test_a_waiting_run_ends_at_once_and_nothing_wakes_it(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r"), start("child")])
    claim, child = await ada.claim(2)
    await ada.park(claim, for_timer(clock.now() + 100), for_signal(), for_run("child"))
    assert await store.cancel("r", "not wanted") == State.CANCELLED
    await assert_cancelled(store, "r", clock.now())
    with pytest.raises(RunEnded):
        await store.signal(message("r"))
    await ada.settle(child, body="1")
    clock.advance(ms=100)
    reply = await ada.exchange(slots=5)
    assert (reply.claims, reply.next_at) == ([], None)


async def test_a_running_run_goes_on_until_its_owner_ends_it(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    assert await store.cancel("r", "not wanted") == State.RUNNING
    run = await record(store, "r")
    assert (run.state, run.cancelling, run.worker) == (State.RUNNING, "not wanted", ada.name)
    for _ in range(3):
        assert (await ada.exchange()).cancelled == [(claim.token, Cancelling("not wanted"))]
    reply = await ada.save(claim, checkpoint("cleanup"))
    assert reply.refused == []
    reply = await ada.settle(claim, To.CANCELLED, '"cleaned"')
    assert (reply.refused, reply.cancelled) == ([], [])
    run = await record(store, "r")
    assert (run.state, run.body) == (State.CANCELLED, '"cleaned"')
    assert await keys(store, "r") == ["cleanup"]


@pytest.mark.parametrize(("to", "state"), [(To.SUCCEEDED, State.SUCCEEDED), (To.FAILED, State.FAILED)])
async def test_a_run_that_was_over_before_it_heard_keeps_its_outcome(
    store: Store, ada: Worker, to: To, state: State
) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await store.cancel("r", "not wanted")
    await ada.settle(claim, to, "1")
    assert await store.ended(["r"]) == [Ended("r", state, "1")]


async def test_only_the_owner_is_told(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r"), start("s")])
    await ada.claim_one()
    await bob.claim_one()
    await store.cancel("r", "not wanted")
    assert (await bob.exchange()).cancelled == []
    assert len((await ada.exchange()).cancelled) == 1


@pytest.mark.parametrize("to", [To.PARK, To.RETRY, To.CONTINUE, To.RELEASE])
async def test_a_run_that_is_being_cancelled_comes_back_to_be_ended(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock, to: To
) -> None:
    await store.enqueue([start("r", input="1")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("k"))
    await store.cancel("r", "not wanted")
    await ada.settle(claim, to, "2", delay=DAY, waits=[for_timer(clock.now() + DAY)])
    assert (await record(store, "r")).state == State.QUEUED
    again = await bob.claim_one()
    assert (again.id, again.cancelling, again.input) == ("r", Cancelling("not wanted"), "1")
    assert [kept.key for kept in again.checkpoints] == ["k"]
    await bob.settle(again, To.CANCELLED, '"over"')
    assert (await record(store, "r")).state == State.CANCELLED


async def test_a_cancelled_run_whose_worker_dies_is_still_cancelled(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    await store.cancel("r", "not wanted")
    await store.bury(ada.name)
    claim = await bob.claim_one()
    assert (claim.cancelling, claim.cut_off) == (Cancelling("not wanted"), True)


async def _pause(store: Store, scope: Scope) -> None:
    await store.pause(scope, "ada")


HELD = {
    "queue": lambda store: _pause(store, of_queue()),
    "workflow": lambda store: _pause(store, of_workflow()),
    "store": lambda store: _pause(store, EVERYTHING),
    "group": lambda store: _pause(store, of_group("g")),
    "full": lambda store: store.set_limits(of_group("g"), Limits(running=1), "ada"),
}
BACK = {
    "buried": lambda store, ada, _: store.bury(ada.name),
    "retired": lambda store, ada, _: store.retire(ada.id),
    "released": lambda _, ada, claim: ada.settle(claim, To.RELEASE),
    "parked": lambda _, ada, claim: ada.settle(claim, To.PARK, waits=[for_timer(DAY)]),
}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("back", BACK)
async def test_a_run_that_is_being_cancelled_ends_at_once_where_nobody_may_claim_it(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock, held: str, back: str
) -> None:
    await store.enqueue([start("first", group="g", group_limit=2)])
    await bob.claim_one()
    await store.enqueue([start("r", group="g", group_limit=2), start("waits", queue=URGENT)])
    claim, waits = named(await ada.claim(), "r", "waits")
    await ada.park(waits, for_run("r"))
    await store.cancel("r", "not wanted")
    await HELD[held](store)
    await BACK[back](store, ada, claim)
    await assert_cancelled(store, "r", clock.now())
    [end] = await store.ended(["r"])
    assert end.body == '"not wanted"'
    await bob.exchange()  # In a cluster that brings the word to the partition of who waits.
    assert (await record(store, "waits")).state == State.QUEUED
    assert (await record(store, "first")).state == State.RUNNING


@pytest.mark.parametrize("back", BACK)
async def test_one_that_is_late_fails_at_once_where_nobody_may_claim_it(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock, back: str
) -> None:
    await store.enqueue([start("r", timeout=1000)])
    claim = await ada.claim_one()
    clock.advance(ms=1000)
    await bob.exchange()
    await _pause(store, of_queue())
    await BACK[back](store, ada, claim)
    run = await record(store, "r")
    assert (run.state, run.body, run.finished_at) == (State.FAILED, deadline_exceeded(), clock.now())
    assert run.cause == OVERDUE


@pytest.mark.parametrize("others", [{}, {SHIP: ["2"]}, {SHIP: ["1"]}])
@pytest.mark.parametrize("back", BACK)
async def test_one_of_a_version_ends_at_once_where_other_versions_alone_are_left(
    store: Store, ada: Worker, others: dict[str, list[str]], back: str
) -> None:
    await store.enqueue([start("r", version="1")])
    of_version = await worker(store, versions={SHIP: ["1"]})
    claim = await of_version.claim_one()
    await store.retire(ada.id)
    if others:
        await worker(store, versions=others)
    await store.cancel("r", "not wanted")
    if back in ("released", "parked"):
        await of_version.exchange(settles=[settle(claim, To.RELEASE)], draining=True)
    else:
        await BACK[back](store, of_version, claim)
    left = State.CANCELLED if others == {SHIP: ["2"]} else State.QUEUED
    assert (await record(store, "r")).state == left


async def test_one_that_is_held_when_it_is_queued_ends_when_it_is_cancelled_again(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await store.cancel("r", "not wanted")
    await ada.settle(claim, To.RELEASE)
    await _pause(store, of_queue())
    assert (await record(store, "r")).state == State.QUEUED
    assert await store.cancel("r", "not wanted") == State.CANCELLED


async def test_a_run_that_has_ended_stays_as_it_is(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.settle(await ada.claim_one(), body="1")
    before = await record(store, "r")
    assert await store.cancel("r", "too late") == State.SUCCEEDED
    assert await record(store, "r") == before


async def test_cancelling_twice_is_cancelling_once(store: Store, ada: Worker) -> None:
    await store.enqueue([start("queued"), start("running")])
    assert await store.cancel("queued", "first") == State.CANCELLED
    before = await record(store, "queued")
    assert await store.cancel("queued", "second") == State.CANCELLED
    assert await record(store, "queued") == before
    claim = await ada.claim_one()
    assert await store.cancel("running", "first") == State.RUNNING
    assert await store.cancel("running", "second") == State.RUNNING
    [(token, _)] = (await ada.exchange()).cancelled
    assert token == claim.token


async def test_a_run_that_is_not_there_can_not_be_cancelled(store: Store) -> None:
    with pytest.raises(RunNotFound):
        await store.cancel("missing", "why not")


async def test_descendants_follow(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue(
        [
            start("root"),
            start("running", parent="root"),
            start("parked", parent="root"),
            start("queued", parent="parked"),
            start("scheduled", parent="queued", delay=DAY),
        ]
    )
    root, running, parked = named(await ada.claim(3), "root", "running", "parked")
    await store.enqueue([start("unrelated")])
    await ada.park(parked, for_run("queued"))
    await ada.park(root, for_run("parked"))
    assert await store.cancel("root", "not wanted") == State.CANCELLED
    for run_id in ("root", "parked", "queued", "scheduled"):
        await assert_cancelled(store, run_id, clock.now())
    [(token, why)] = (await ada.exchange()).cancelled
    assert token == running.token and "not wanted" in why.reason
    assert ids(await ada.claim()) == ["unrelated"]


async def test_descendants_of_a_running_run_follow_as_well(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("root")])
    root = await ada.claim_one()
    await ada.save(root, checkpoint("c", kind=Kind.CHILD), starts=start("child", parent="root"))
    assert await store.cancel("root", "not wanted") == State.RUNNING
    await assert_cancelled(store, "child", clock.now())


async def test_descendants_that_have_ended_stay_as_they_are(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("done", parent="root", priority=-1), start("root"), start("live", parent="done")])
    await ada.settle(await ada.claim_one(), body="1")
    await store.cancel("root", "not wanted")
    assert await store.ended(["done"]) == [Ended("done", State.SUCCEEDED, "1")]


async def test_descendants_may_be_left_alone(store: Store, ada: Worker) -> None:
    await store.enqueue([start("root"), start("child", parent="root")])
    assert await store.cancel("root", "not wanted", children=False) == State.CANCELLED
    assert ids(await ada.claim()) == ["child"]


async def test_a_parent_does_not_follow_its_child_but_learns_of_it(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parent"), start("child", parent="parent", delay=DAY)])
    await ada.park(await ada.claim_one(), for_run("child"))
    await store.cancel("child", "not wanted")
    claim = await ada.claim_one()
    assert (claim.id, claim.cancelling) == ("parent", None)
    assert [(end.id, end.state) for end in claim.ended] == [("child", State.CANCELLED)]


async def test_a_thousand_descendants_follow_in_one_call(store: Store, clock: ManualClock) -> None:
    await store.enqueue(
        [start("root")] + [start(f"c{n}", parent="root" if n < 500 else f"c{n - 500}") for n in range(1000)]
    )
    await store.cancel("root", "not wanted")
    assert {(count.state, count.runs) for count in await store.counts()} == {(State.CANCELLED, 1001)}


async def test_a_chain_of_descendants_follows_to_its_end(store: Store) -> None:
    await store.enqueue([start("c0")] + [start(f"c{n}", parent=f"c{n - 1}") for n in range(1, 300)])
    await store.cancel("c0", "not wanted")
    assert (await record(store, "c299")).state == State.CANCELLED


async def test_a_reason_is_no_more_than_a_text(store: Store, ada: Worker) -> None:
    reasons = {"r": "deadline", "s": DEADLINE_PASSED}
    await store.enqueue([start("r"), start("s")])
    claims = await ada.claim(2)
    for claim in claims:
        await store.cancel(claim.id, reasons[claim.id])
    assert dict((await ada.exchange()).cancelled) == {
        claim.token: Cancelling(reasons[claim.id], deadline=False) for claim in claims
    }
