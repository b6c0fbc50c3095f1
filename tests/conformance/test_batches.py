"""Batches: runs that are made all or none, counted as they end, and followed by one more run."""

from __future__ import annotations

import asyncio

import pytest

from conformance.kit import DEFAULT, SHIP, ManualClock, Worker, all_runs, drain, ids, record, settle, start
from perdure.causes import OVERDUE
from perdure.errors import IdConflict, StoreError
from perdure.model import BatchRecord, Count, OnConflict, RunQuery, Started, State, Unique, WaitFor
from perdure.stores.base import Store
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio


async def batch(store: Store, id: str = "b") -> BatchRecord:
    found = await store.batch(id)
    assert found is not None
    return found


async def test_a_batch_counts_its_runs_as_they_end_and_then_starts_its_callback(store: Store, ada: Worker) -> None:
    answers = await store.open_batch("b", [start(f"r{n}") for n in range(4)], start("done", input="9"))
    assert answers == [Started(f"r{n}", False, True) for n in range(4)]
    assert await batch(store) == BatchRecord("b", 4, 0, 0, 0, "done")
    callback = await record(store, "done")
    assert (callback.state, [wait.what for wait in callback.waits]) == (State.WAITING, [WaitFor.BATCH])
    claims = await ada.claim()
    assert ids(claims) == ["r0", "r1", "r2", "r3"]
    await ada.settle(claims[0], body="1")
    await ada.settle(claims[1], To.FAILED, '"x"')
    await ada.settle(claims[2], To.RETRY, '"x"')
    await store.cancel("r3", "x")
    assert await batch(store) == BatchRecord("b", 4, 1, 1, 0, "done")
    await ada.settle(claims[3], To.CANCELLED, '"x"')
    reply = await ada.exchange(slots=9)
    assert ids(reply.claims) == ["r2"]
    reply = await ada.exchange(settles=[settle(reply.claims[0], body="1")], slots=9)
    assert await batch(store) == BatchRecord("b", 4, 2, 1, 1, "done")
    assert [(claim.id, claim.input) for claim in reply.claims] == [("done", "9")]


async def test_opening_a_batch_again_changes_nothing(store: Store, ada: Worker) -> None:
    starts, callback = [start("a"), start("b")], start("done")
    await store.open_batch("x", starts, callback)
    await ada.settle(await ada.claim_one())
    await store.delete("a")
    answers = await store.open_batch("x", starts, callback)
    assert answers == [Started("a", True, True), Started("b", True, True)]
    assert await store.load("a") is None
    assert (await batch(store, "x")).total == 2


async def test_a_batch_is_made_whole_or_not_at_all(store: Store) -> None:
    await store.enqueue([start("there", input="1")])
    starts = [start(f"r{n}") for n in range(7_000)]
    starts[-1].input = '"\ud800"'  # no text that can be kept
    with pytest.raises((UnicodeError, StoreError)):
        await store.open_batch("b", starts, start("done"))
    assert await store.batch("b") is None
    assert len(await all_runs(store)) == 1
    starts[-1].input = "null"
    assert len(await store.open_batch("b", starts, start("done"))) == 7_000
    assert (await batch(store)).total == 7_000


async def test_a_batch_that_is_opened_as_another_one_is_a_conflict(store: Store) -> None:
    starts = [start("a", input="1"), start("b", input="2")]
    await store.open_batch("x", starts, start("done"))
    for others, callback in [
        ([*starts, start("c")], start("done")),
        (starts[:1], start("done")),
        (starts, None),
        ([start("a", input="1"), start("b", input="3")], start("done")),
    ]:
        with pytest.raises(IdConflict):
            await store.open_batch("x", others, callback)
    assert await batch(store, "x") == BatchRecord("x", 2, 0, 0, 0, "done")
    assert len(await all_runs(store)) == 3


@pytest.mark.parametrize("input", ['"other"', "null"], ids=["of another input", "of the same input"])
@pytest.mark.parametrize("taken", ["r0", "r249", "done"])
@pytest.mark.parametrize("number", [1, 250], ids=["short", "long"])
async def test_a_batch_of_which_an_id_is_taken_is_not_made(store: Store, taken: str, number: int, input: str) -> None:
    taken = taken if number == 250 or taken == "done" else "r0"
    await store.enqueue([start(taken, input=input)])
    starts = [start(f"r{n}") for n in range(number)]
    with pytest.raises(IdConflict, match=f"'{taken}'"):
        await store.open_batch("x", starts, start("done"))
    assert await store.batch("x") is None
    assert [run.id for run in await all_runs(store)] == [taken]
    assert await store.counts() == [Count(DEFAULT, SHIP, State.QUEUED, 1)]
    await store.delete(taken, force=True)
    await store.open_batch("x", starts, start("done"))
    assert (await batch(store, "x")).total == number


async def test_an_id_of_another_batch_is_taken(store: Store) -> None:
    await store.open_batch("x", [start("a")], start("done"))
    for starts, callback in (([start("a"), start("b")], start("over")), ([start("b")], start("done"))):
        with pytest.raises(IdConflict):
            await store.open_batch("y", starts, callback)
    assert await store.batch("y") is None
    assert [run.id for run in await all_runs(store)] == ["a", "done"]


async def test_an_empty_batch_is_done_at_once(store: Store, ada: Worker) -> None:
    assert await store.open_batch("b", [], start("done")) == []
    assert ids(await ada.claim()) == ["done"]
    assert await store.open_batch("c", [], None) == []
    assert await batch(store, "c") == BatchRecord("c", 0, 0, 0, 0, None)
    assert await store.batch("none") is None


async def test_runs_to_which_a_unique_key_leads_do_not_count(store: Store, ada: Worker) -> None:
    await store.enqueue([start("b", unique=Unique("k"))])
    starts = [start("c"), start("d", unique=Unique("k")), start("c")]
    answers = await store.open_batch("x", starts, None)
    assert [(answer.id, answer.existed) for answer in answers] == [("c", False), ("b", True), ("c", True)]
    assert (await batch(store, "x")).total == 1
    assert ((await record(store, "b")).batch, (await record(store, "c")).batch) == ("", "x")


async def test_a_failed_run_of_a_complete_batch_is_retried_and_the_callback_is_not(store: Store, ada: Worker) -> None:
    await store.open_batch("b", [start("a"), start("c")], start("done"))
    one, other = await ada.claim()
    await ada.settle(one, To.FAILED, '"x"')
    await ada.settle(other)
    callback = await ada.claim_one()
    await store.retry("a")
    assert await batch(store) == BatchRecord("b", 2, 1, 0, 0, "done")
    await ada.settle(await ada.claim_one())
    assert await batch(store) == BatchRecord("b", 2, 2, 0, 0, "done")
    await ada.settle(callback)
    assert await drain(ada) == []
    assert (await record(store, "done")).state == State.SUCCEEDED


async def test_a_retry_before_the_batch_is_complete_puts_its_callback_off(store: Store, ada: Worker) -> None:
    await store.open_batch("b", [start("a"), start("c")], start("done"))
    one, other = await ada.claim()
    await ada.settle(one, To.FAILED, '"x"')
    await store.retry("a")
    await ada.settle(other)
    again = await ada.claim()
    assert ids(again) == ["a"]
    await ada.settle(again[0])
    assert ids(await ada.claim()) == ["done"]


@pytest.mark.parametrize("how", ["cancel", "deadline", "poison", "delete"])
async def test_runs_that_end_without_their_worker_count(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock, how: str
) -> None:
    await store.open_batch("b", [start("a", timeout=1000, max_crashes=1)], start("done"))
    if how == "cancel":
        await store.cancel("a", "x")
    elif how == "deadline":
        clock.advance(ms=1000)
        await bob.exchange()
    elif how == "poison":
        await ada.claim_one()
        await store.bury(ada.name)
    else:
        await store.delete("a", force=True)
    assert ids(await bob.claim()) == ["done"]


async def test_a_batch_ends_once_however_often_its_settles_are_repeated(store: Store, ada: Worker) -> None:
    await store.open_batch("b", [start("a"), start("c")], start("done"))
    claims = await ada.claim()
    await ada.exchange(settles=[settle(claim) for claim in claims])
    await ada.repeat()
    assert (await batch(store)).succeeded == 2
    assert ids(await drain(ada)) == ["done"]


async def test_two_processes_that_open_a_batch_make_one(store: Store, other: Store, ada: Worker) -> None:
    starts = [start(f"r{n}") for n in range(50)]
    await asyncio.gather(*(each.open_batch("b", starts, start("done")) for each in (store, other) for _ in range(3)))
    assert (await batch(store)).total == 50
    claims = await drain(ada)
    assert len(claims) == 50
    await ada.exchange(settles=[settle(claim) for claim in claims])
    assert ids(await drain(ada)) == ["done"]


async def test_a_callback_that_was_cancelled_is_not_started(store: Store, ada: Worker) -> None:
    await store.open_batch("b", [start("a")], start("done"))
    await store.cancel("done", "x")
    await ada.settle(await ada.claim_one())
    assert await ada.claim() == []
    assert (await record(store, "done")).state == State.CANCELLED


async def test_starts_may_join_a_batch_later(store: Store) -> None:
    await store.open_batch("b", [start("a")], start("done"))
    joining = start("c")
    joining.batch = "b"
    await store.enqueue([joining])
    await store.enqueue([joining])
    assert (await batch(store)).total == 2
    assert [run.id for run in await store.runs(RunQuery(batch="b", oldest_first=True))] == ["a", "c"]


@pytest.mark.parametrize("runs", [1, 0])
async def test_the_time_of_a_callback_counts_from_when_it_may_begin(
    store: Store, ada: Worker, clock: ManualClock, runs: int
) -> None:
    await store.open_batch("b", [start(f"r{n}") for n in range(runs)], start("done", timeout=1000))
    for claim in await ada.claim(runs):
        clock.advance(ms=5000)
        await ada.exchange()
        callback = await record(store, "done")
        assert (callback.state, callback.deadline) == (State.WAITING, None)
        await ada.settle(claim, body="1")
    callback = await record(store, "done")
    assert callback.deadline == clock.now() + 1000
    clock.advance(ms=1000)
    await ada.exchange()
    callback = await record(store, "done")
    assert (callback.state, callback.cause) == (State.FAILED, OVERDUE)


@pytest.mark.parametrize(("takes", "state"), [(999, State.SCHEDULED), (1000, State.QUEUED)])
async def test_a_callback_begins_when_it_is_due_and_not_before(
    store: Store, ada: Worker, clock: ManualClock, takes: int, state: State
) -> None:
    await store.open_batch("b", [start("r")], start("done", delay=1000, timeout=70))
    due = clock.now() + 1000
    claim = await ada.claim_one()
    clock.advance(ms=takes)
    await ada.settle(claim, body="1")
    callback = await record(store, "done")
    assert (callback.state, callback.deadline) == (state, due + 70)
    assert callback.wake_at == (due if state == State.SCHEDULED else None)
    clock.advance(ms=1000 - takes)
    assert ids(await ada.claim()) == ["done"]


async def test_a_callback_takes_over_the_times_of_a_start_that_replaces_it(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    unique = Unique("k", on_conflict=OnConflict.REPLACE)
    await store.open_batch("b", [start("r")], start("done", unique=unique, timeout=1000))
    claim = await ada.claim_one()
    clock.advance(ms=5000)
    await store.enqueue([start(input="2", unique=unique, delay=100, timeout=70)])
    callback = await record(store, "done")
    assert (callback.state, callback.deadline, callback.input) == (State.WAITING, None, "2")
    await ada.settle(claim, body="1")
    callback = await record(store, "done")
    assert (callback.state, callback.deadline) == (State.SCHEDULED, clock.now() + 170)
