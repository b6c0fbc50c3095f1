"""Unique keys: one live run per key and workflow, and what the next start of the key does to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
import pytest

from conformance.kit import (
    BILL,
    LEASE,
    URGENT,
    ManualClock,
    Worker,
    all_runs,
    checkpoint,
    for_signal,
    keys,
    message,
    of_group,
    record,
    save,
    start,
    worker,
)
from perdure.errors import KeyTaken
from perdure.model import Kind, Limits, Millis, OnConflict, Rate, RunQuery, Start, Started, State, Unique
from perdure.stores.base import Store
from perdure.stores.exchange import Existed, To

pytestmark = pytest.mark.anyio

EXISTING = Unique("k")
REPLACE = Unique("k", OnConflict.REPLACE)
DEBOUNCE = Unique("k", OnConflict.DEBOUNCE, 1000)
THROTTLE = Unique("k", OnConflict.THROTTLE, 1000)


async def begin(store: Store, wanted: Start) -> Started:
    [answer] = await store.enqueue([wanted])
    return answer


async def test_the_second_start_of_a_key_gets_the_live_run(store: Store) -> None:
    first = await begin(store, start("a", unique=EXISTING, input="1"))
    second = await begin(store, start("b", unique=EXISTING, input="2"))
    assert (first, second) == (Started("a", False, True), Started("a", True, True))
    assert [run.id for run in await all_runs(store)] == ["a"]
    assert (await record(store, "a")).unique == "k" and (await record(store, "a")).input == "1"


async def test_keys_are_of_one_workflow_whatever_the_queue(store: Store) -> None:
    starts = [
        start("a", unique=EXISTING),
        start("b", unique=EXISTING, workflow=BILL),
        start("c", unique=EXISTING, queue=URGENT),
        start("d", unique=Unique("other")),
    ]
    assert [answer.id for answer in await store.enqueue(starts)] == ["a", "b", "a", "d"]


@pytest.mark.parametrize("key", ["", " ", "k'); --", "ключ", "🔑" * 300, '["x"]', "a/b:c|d"])
async def test_any_text_is_a_key(store: Store, key: str) -> None:
    unique, other = Unique(key), Unique(key + "x")
    answers = await store.enqueue([start("a", unique=unique), start("b", unique=unique), start("c", unique=other)])
    assert [answer.id for answer in answers] == ["a", "a", "c"]
    assert (await record(store, "a")).unique == key


async def test_keys_within_a_batch_and_beside_starts_without_any(store: Store) -> None:
    starts = [start(str(n), unique=Unique(f"k{n % 3}") if n % 2 else None) for n in range(12)]
    answers = await store.enqueue(starts)
    assert [(answer.id, answer.existed) for answer in answers] == [
        ("0", False), ("1", False), ("2", False), ("3", False), ("4", False), ("5", False),
        ("6", False), ("1", True), ("8", False), ("3", True), ("10", False), ("5", True),
    ]  # fmt: skip
    assert sorted(run.id for run in await all_runs(store)) == ["0", "1", "10", "2", "3", "4", "5", "6", "8"]


async def test_an_id_that_exists_is_that_run_whatever_the_key(store: Store) -> None:
    await store.enqueue([start("a", unique=EXISTING, input="1"), start("b", input="2")])
    assert await begin(store, start("b", unique=REPLACE, input="3")) == Started("b", True, False)
    assert (await record(store, "a")).input == "1"
    assert (await record(store, "b")).unique == ""


async def test_many_starts_of_a_key_at_once_make_one_run(store: Store, other: Store) -> None:
    calls = [begin(each, start(unique=EXISTING)) for _ in range(20) for each in (store, other)]
    answers = await asyncio.gather(*calls)
    assert len({answer.id for answer in answers}) == 1
    assert sum(not answer.existed for answer in answers) == 1
    assert len(await all_runs(store)) == 1


# --- the key is free again, however the run ends


async def succeed(store: Store, worker: Worker, clock: ManualClock) -> None:
    await worker.settle(await worker.claim_one(), body="1")


async def fail(store: Store, worker: Worker, clock: ManualClock) -> None:
    await worker.settle(await worker.claim_one(), To.FAILED, '"x"')


async def cancel(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.cancel("a", "x")


async def cancel_running(store: Store, worker: Worker, clock: ManualClock) -> None:
    claim = await worker.claim_one()
    await store.cancel("a", "x")
    await worker.settle(claim, To.CANCELLED, '"x"')


async def miss_the_deadline(store: Store, worker: Worker, clock: ManualClock) -> None:
    clock.advance(ms=60_000)
    await worker.exchange()


async def poison(store: Store, worker: Worker, clock: ManualClock) -> None:
    await worker.claim_one()
    await store.bury(worker.name)


async def delete(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.delete("a", force=True)


End: TypeAlias = Callable[[Store, Worker, ManualClock], Awaitable[None]]
ENDS: list[End] = [succeed, fail, cancel, cancel_running, miss_the_deadline, poison, delete]


@pytest.mark.parametrize("mode", [EXISTING, REPLACE])
@pytest.mark.parametrize("end", ENDS)
async def test_the_key_is_free_when_the_run_has_ended(
    store: Store, ada: Worker, clock: ManualClock, mode: Unique, end: End
) -> None:
    await store.enqueue([start("a", unique=mode, timeout=60_000, max_crashes=1)])
    await end(store, ada, clock)
    assert await begin(store, start("b", unique=mode)) == Started("b", False, True)
    assert await begin(store, start("c", unique=mode)) == Started("b", True, True)


async def test_the_key_stays_taken_while_the_run_lives(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("a", unique=EXISTING)])

    async def taken() -> bool:
        return (await begin(store, start(unique=EXISTING))).id == "a"

    await ada.park(await ada.claim_one(), for_signal())
    assert await taken()
    await store.signal(message("a"))
    await ada.settle(await ada.claim_one(), To.RETRY, '"x"', delay=1000)
    assert await taken()
    clock.advance(ms=1000)
    await ada.claim_one()
    assert await taken()
    clock.advance(ms=LEASE)
    await store.reclaim()
    assert await taken()


async def test_a_run_whose_key_was_taken_meanwhile_is_not_retried(store: Store, ada: Worker) -> None:
    for run_id in ("a", "b"):
        await store.enqueue([start(run_id, unique=EXISTING)])
        await fail(store, ada, ManualClock())
    await store.enqueue([start("c", unique=EXISTING)])
    with pytest.raises(KeyTaken, match="run a"):
        await store.retry("a")
    assert (await record(store, "a")).state == State.FAILED
    assert await store.retry_many(RunQuery()) == []
    await store.cancel("c", "x")
    assert await store.retry_many(RunQuery(oldest_first=True)) == ["a"]
    assert await begin(store, start("d", unique=EXISTING)) == Started("a", True, True)


# --- replace


async def test_a_start_replaces_input_and_due_time_of_a_run_that_has_not_begun(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("a", unique=REPLACE, input="1", delay=5000, timeout=10)])
    assert await begin(store, start("b", unique=REPLACE, input="2")) == Started("a", True, True)
    run = await record(store, "a")
    assert (run.input, run.state, run.wake_at, run.deadline) == ("2", State.QUEUED, None, None)
    await begin(store, start("c", unique=REPLACE, input="3", delay=7000, timeout=50))
    run = await record(store, "a")
    assert (run.input, run.state, run.wake_at) == ("3", State.SCHEDULED, clock.now() + 7000)
    assert run.deadline == clock.now() + 7050
    assert await ada.claim() == []
    clock.advance(ms=7000)
    assert (await ada.claim_one()).input == "3"


async def test_a_run_that_has_begun_is_handed_back_as_it_is(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a", unique=REPLACE, input="1")])
    claim = await ada.claim_one()
    await ada.settle(claim, To.RETRY, '"x"', delay=1000)
    assert await begin(store, start("b", unique=REPLACE, input="2")) == Started("a", True, True)
    assert (await record(store, "a")).input == "1"


async def test_the_last_one_of_a_batch_replaces_those_before(store: Store) -> None:
    answers = await store.enqueue([start(str(n), unique=REPLACE, input=str(n), delay=n) for n in range(4)])
    assert [answer.id for answer in answers] == ["0"] * 4
    [run] = await all_runs(store)
    assert (run.id, run.input, run.state) == ("0", "3", State.SCHEDULED)


# --- debounce


async def test_a_debounced_run_is_put_off_by_each_start(store: Store, ada: Worker, clock: ManualClock) -> None:
    for n in range(5):
        answer = await begin(store, start(str(n), unique=DEBOUNCE, input=str(n)))
        assert answer == Started("0", n > 0, True)
        clock.advance(ms=999)
        assert await ada.claim() == []
    clock.advance(ms=1)
    claim = await ada.claim_one()
    assert (claim.id, claim.input) == ("0", "4")


async def test_what_comes_while_a_debounced_run_runs_makes_the_next_one(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await begin(store, start("a", unique=DEBOUNCE))
    clock.advance(ms=1000)
    claim = await ada.claim_one()
    assert await begin(store, start("b", unique=DEBOUNCE, input="1")) == Started("b", False, True)
    assert await begin(store, start("c", unique=DEBOUNCE, input="2")) == Started("b", True, True)
    await ada.settle(claim)
    clock.advance(ms=1000)
    assert (await ada.claim_one()).input == "2"


async def test_a_debounced_run_that_failed_may_be_retried_beside_the_next_one(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await begin(store, start("a", unique=DEBOUNCE))
    clock.advance(ms=1000)
    await ada.settle(await ada.claim_one(), To.FAILED, '"x"')
    await begin(store, start("b", unique=DEBOUNCE))
    await store.retry("a")
    assert (await begin(store, start("c", unique=DEBOUNCE))).id == "b"


async def test_a_debounced_run_that_was_cancelled_before_it_began_is_not_retried_beside_the_next_one(
    store: Store,
) -> None:
    await begin(store, start("a", unique=DEBOUNCE))
    await store.cancel("a", "x")
    await begin(store, start("b", unique=DEBOUNCE))
    with pytest.raises(KeyTaken):
        await store.retry("a")


async def test_a_replaced_run_moves_in_its_group(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("a", group="g"), start("b", group="g", unique=REPLACE), start("c", group="g")])
    claim = await ada.claim_one()
    await begin(store, start("d", unique=REPLACE, delay=5000, input="2"))
    await ada.settle(claim)
    [claim] = await ada.claim()
    assert claim.id == "c"
    clock.advance(ms=5000)
    assert await ada.claim() == []
    await ada.settle(claim)
    assert [(claim.id, claim.input) for claim in await ada.claim()] == [("b", "2")]


async def test_a_replaced_run_that_has_its_turn_gives_it_on(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("a", group="g", unique=REPLACE), start("b", group="g")])
    await begin(store, start("c", unique=REPLACE, delay=5000))
    assert [claim.id for claim in await ada.claim()] == ["b"]


@pytest.mark.parametrize(("delay", "begins"), [(0, 1000), (500, 1000), (5000, 5000)])
async def test_a_replaced_run_that_a_rate_put_off_begins_no_earlier(
    store: Store, ada: Worker, clock: ManualClock, delay: Millis, begins: Millis
) -> None:
    await store.set_limits(of_group("g"), Limits(rate=Rate(1, 1000, 1)), "ada")
    await store.enqueue([start("a", group="g", group_limit=9), start("b", group="g", group_limit=9, unique=REPLACE)])
    assert [claim.id for claim in await ada.claim()] == ["a"]
    await begin(store, start("c", unique=REPLACE, delay=delay, input="2"))
    clock.advance(ms=begins - 1)
    assert await ada.claim() == []
    clock.advance(ms=1)
    assert [(claim.id, claim.input) for claim in await ada.claim()] == [("b", "2")]


# --- throttle


async def test_a_throttled_key_makes_one_run_in_a_period(store: Store, ada: Worker, clock: ManualClock) -> None:
    await begin(store, start("a", unique=THROTTLE))
    await succeed(store, ada, clock)
    clock.advance(ms=999)
    assert await begin(store, start("b", unique=THROTTLE)) == Started("a", True, True)
    clock.advance(ms=1)
    assert await begin(store, start("c", unique=THROTTLE)) == Started("c", False, True)


async def test_a_throttled_run_that_lives_longer_than_the_period_keeps_its_key(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await begin(store, start("a", unique=THROTTLE))
    clock.advance(ms=5000)
    assert await begin(store, start("b", unique=THROTTLE)) == Started("a", True, True)
    await succeed(store, ada, clock)
    assert await begin(store, start("c", unique=THROTTLE)) == Started("c", False, True)


async def test_a_deleted_run_frees_a_throttled_key(store: Store, ada: Worker, clock: ManualClock) -> None:
    await begin(store, start("a", unique=THROTTLE))
    await succeed(store, ada, clock)
    await store.delete("a")
    assert await begin(store, start("b", unique=THROTTLE)) == Started("b", False, True)


# --- children


async def test_a_child_whose_key_is_taken_is_the_run_that_has_it(store: Store, ada: Worker) -> None:
    await store.enqueue([start("p"), start("a", unique=EXISTING)])
    claim = await ada.claim_one()
    child = start("p/child", unique=EXISTING)
    kept = checkpoint("child", '"p/child"', kind=Kind.CHILD)
    reply = await ada.exchange(saves=[save(claim, kept, starts=child)])
    assert reply.existed == [Existed(claim.token, "child", "a", True)]
    found = await store.find("p", "child")
    assert found is not None and found.body == '"a"'
    assert await store.load("p/child") is None
    assert (await record(store, "a")).parent is None
    again = await ada.repeat()
    assert again.existed == reply.existed and await keys(store, "p") == ["child"]


async def test_a_child_with_a_free_key_is_made(store: Store, ada: Worker) -> None:
    await store.enqueue([start("p")])
    claim = await ada.claim_one()
    child = start("p/child", unique=EXISTING)
    reply = await ada.exchange(saves=[save(claim, checkpoint("c", '"p/child"', kind=Kind.CHILD), starts=child)])
    assert reply.existed == []
    assert (await ada.repeat()).existed in ([], [Existed(claim.token, "c", "p/child", True)])
    assert (await record(store, "p/child")).parent == "p"


async def test_a_start_whose_reply_was_lost_may_be_repeated(store: Store, ada: Worker, clock: ManualClock) -> None:
    for mode in (EXISTING, REPLACE, DEBOUNCE, THROTTLE):
        unique = msgspec.structs.replace(mode, key=mode.on_conflict)
        wanted = start(mode.on_conflict, unique=unique)
        assert (await begin(store, wanted)).existed is False
        assert await begin(store, wanted) == Started(wanted.id, True, True)
    assert len(await all_runs(store)) == 4
    clock.advance(ms=10_000)
    late = await worker(store)
    assert len(await late.claim()) == 4
