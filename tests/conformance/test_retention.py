"""Retention: what leaves the store by age and by number, oldest end first, and what has to stay."""

from __future__ import annotations

import asyncio

import pytest

from conformance.kit import (
    BILL,
    DAY,
    SHIP,
    ManualClock,
    Worker,
    all_runs,
    checkpoint,
    for_run,
    for_signal,
    message,
    named,
    record,
    settle,
    start,
)
from perdure.model import Retention, RunQuery, State
from perdure.stores.base import Store
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio

HOUR = 60 * 60 * 1000
EVERYTHING = [Retention(age=0)]


async def left(store: Store) -> list[str]:
    return [run.id for run in await all_runs(store)]


async def end(ada: Worker, store: Store, *ids: str, to: To = To.SUCCEEDED, workflow: str = SHIP) -> None:
    """Makes runs that end in this order, whatever that in which they were made."""
    await store.enqueue([start(id, workflow=workflow) for id in sorted(ids)])
    claims = {claim.id: claim for claim in await ada.claim(len(ids))}
    for id in ids:
        await ada.settle(claims[id], to, '"x"')


async def test_runs_go_when_they_are_old_enough(store: Store, ada: Worker, clock: ManualClock) -> None:
    for id in "abc":
        await end(ada, store, id)
        clock.advance(ms=HOUR)
    policies = [Retention(age=2 * HOUR)]
    assert await store.prune(policies, limit=100) == 2
    assert await left(store) == ["c"]
    assert await store.prune(policies, limit=100) == 0
    clock.advance(ms=HOUR)
    assert await store.prune(policies, limit=100) == 1


async def test_the_newest_of_a_number_stay(store: Store, ada: Worker) -> None:
    await end(ada, store, "c", "a", "e", "b", "d")
    assert await store.prune([Retention(count=2)], limit=100) == 3
    assert await left(store) == ["b", "d"], "those that ended last, not those that were made last"
    assert await store.prune([Retention(count=0)], limit=100) == 2


async def test_ties_are_broken_by_the_order_of_finishing(store: Store, ada: Worker, bob: Worker) -> None:
    """Within a millisecond, within a batch of settles, and over all that can end a run."""
    await store.enqueue([start(id, max_crashes=1) for id in "abcdefg"])
    claims = {claim.id: claim for claim in await ada.claim(5)}
    await bob.claim(1)
    await ada.exchange(settles=[settle(claims["e"]), settle(claims["a"], To.FAILED), settle(claims["d"])])
    await store.cancel("g", "x")
    await store.bury(bob.name)
    await ada.settle(claims["c"], To.CANCELLED)
    await ada.settle(claims["b"])
    order = []
    while True:
        before = set(await left(store))
        if not await store.prune(EVERYTHING, limit=1):
            break
        order += before - set(await left(store))
    assert order == ["e", "a", "d", "g", "f", "c", "b"]


async def test_a_call_removes_at_most_its_limit(store: Store, ada: Worker) -> None:
    await end(ada, store, *"abcdefgh")
    assert [await store.prune(EVERYTHING, limit=3) for _ in range(4)] == [3, 3, 2, 0]


async def test_what_has_not_ended_stays(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("parked"), start("backing off"), start("running")])
    parked, backing, _ = await ada.claim()
    await ada.park(parked, for_signal())
    await ada.settle(backing, To.RETRY, '"x"', delay=100 * DAY)
    await end(ada, store, "ended")
    await store.enqueue([start("later", delay=100 * DAY), start("queued")])
    clock.advance(ms=DAY)
    assert await store.prune([Retention(age=0, count=0)], limit=100) == 1
    assert "ended" not in await left(store) and len(await left(store)) == 5


async def test_the_most_specific_policy_holds(store: Store, ada: Worker, clock: ManualClock) -> None:
    await end(ada, store, "s1")
    await end(ada, store, "s2", to=To.FAILED)
    await end(ada, store, "b1", workflow=BILL)
    await end(ada, store, "b2", to=To.FAILED, workflow=BILL)
    await end(ada, store, "b3", to=To.CANCELLED, workflow=BILL)
    clock.advance(ms=HOUR)
    keep = [Retention(age=0), Retention(state=State.FAILED), Retention(workflow=BILL, age=DAY)]
    assert await store.prune(keep, limit=100) == 1
    assert sorted(await left(store)) == ["b1", "b2", "b3", "s2"]
    assert await store.prune([*keep, Retention(workflow=BILL, state=State.FAILED, age=0)], limit=100) == 1
    assert sorted(await left(store)) == ["b1", "b3", "s2"]


async def test_a_number_is_of_all_runs_that_a_policy_holds_for(store: Store, ada: Worker) -> None:
    await end(ada, store, "a")
    await end(ada, store, "b", workflow=BILL)
    await end(ada, store, "c", to=To.FAILED)
    await end(ada, store, "d")
    assert await store.prune([Retention(count=2)], limit=100) == 2
    assert await left(store) == ["c", "d"]


async def test_policies_that_say_nothing_keep_everything(store: Store, ada: Worker, clock: ManualClock) -> None:
    await end(ada, store, "a")
    clock.advance(ms=1000 * DAY)
    assert await store.prune([], limit=100) == 0
    assert await store.prune([Retention()], limit=100) == 0


async def test_age_and_number_together_let_go_of_either(store: Store, ada: Worker, clock: ManualClock) -> None:
    await end(ada, store, "a", "b")
    clock.advance(ms=HOUR)
    await end(ada, store, "c", "d", "e")
    assert await store.prune([Retention(age=HOUR, count=2)], limit=100) == 3
    assert await left(store) == ["d", "e"]


async def test_children_stay_while_their_parent_lives(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("p")])
    parent = await ada.claim_one()
    await store.enqueue([start(f"c{n}", parent="p") for n in range(5)])
    for claim in await ada.claim():
        await ada.settle(claim, body="1")
    await end(ada, store, "other")
    await ada.park(parent, for_signal())
    clock.advance(ms=DAY)
    assert await store.prune(EVERYTHING, limit=2) == 1, "what has to stay is not in the way of what may go"
    assert await store.prune(EVERYTHING, limit=2) == 0
    assert await left(store) == ["p", "c0", "c1", "c2", "c3", "c4"]
    await store.signal(message("p"))
    await ada.settle(await ada.claim_one(), body="1")
    assert [await store.prune(EVERYTHING, limit=4) for _ in range(3)] == [4, 2, 0]
    assert await left(store) == []


async def test_runs_of_a_batch_stay_while_it_has_runs_left(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.open_batch("b", [start(f"b{n}") for n in range(5)], None)
    claims = await ada.claim()
    for claim in claims[:4]:
        await ada.settle(claim, body="1")
    await end(ada, store, "other")
    clock.advance(ms=DAY)
    assert await store.prune([Retention(count=0)], limit=2) == 1
    assert await store.prune(EVERYTHING, limit=2) == 0
    assert await left(store) == ["b0", "b1", "b2", "b3", "b4"]
    await ada.settle(claims[4], body="1")
    assert [await store.prune(EVERYTHING, limit=4) for _ in range(3)] == [4, 1, 0]
    assert await store.batch("b") is None


async def test_runs_of_a_batch_stay_until_its_callback_has_ended(store: Store, ada: Worker) -> None:
    await store.open_batch("b", [start("b0"), start("b1")], start("done"))
    for claim in await ada.claim():
        await ada.settle(claim, body="1")
    callback = await ada.claim_one()
    assert await store.prune(EVERYTHING, limit=9) == 0
    await ada.settle(callback, body="1")
    assert await store.prune(EVERYTHING, limit=9) == 3


async def test_runs_of_a_batch_whose_callback_was_cancelled_go_when_all_have_ended(store: Store, ada: Worker) -> None:
    await store.open_batch("b", [start("b0"), start("b1")], start("done"))
    first, second = await ada.claim()
    await ada.settle(first, body="1")
    assert await store.prune(EVERYTHING, limit=9) == 0
    await store.cancel("done", "not wanted")
    await store.prune(EVERYTHING, limit=9)
    assert first.id in await left(store)
    await ada.settle(second, body="1")
    while await store.prune(EVERYTHING, limit=9):
        pass
    assert await left(store) == []


async def test_children_go_when_their_parent_is_cancelled(store: Store, ada: Worker) -> None:
    await store.enqueue([start("p")])
    parent = await ada.claim_one()
    await store.enqueue([start("c", parent="p")])
    await ada.settle(await ada.claim_one(), body="1")
    await ada.park(parent, for_signal())
    assert await store.prune(EVERYTHING, limit=9) == 0
    await store.cancel("p", "not wanted")
    assert await store.prune(EVERYTHING, limit=9) == 2


async def test_a_run_of_a_batch_and_of_a_parent_stays_for_either(store: Store, ada: Worker) -> None:
    await store.enqueue([start("p")])
    parent = await ada.claim_one()
    await store.open_batch("b", [start("b0", parent="p"), start("b1", parent="p")], None)
    b0, b1 = await ada.claim()
    await ada.settle(b0, body="1")
    assert await store.prune(EVERYTHING, limit=9) == 0
    await ada.settle(parent, body="1")
    assert await store.prune(EVERYTHING, limit=9) == 1
    assert await left(store) == ["b0", "b1"]
    await ada.settle(b1, body="1")
    assert await store.prune(EVERYTHING, limit=9) == 2


async def test_a_batch_without_runs_goes_when_it_is_old(store: Store, clock: ManualClock) -> None:
    await store.open_batch("none", [], None)
    await store.open_batch("callback", [], start("done"))
    clock.advance(ms=HOUR)
    await store.open_batch("new", [], None)
    assert await store.prune([Retention(age=HOUR)], limit=9) == 0
    assert [await store.batch(name) is None for name in ("none", "callback", "new")] == [True, False, False]


async def test_runs_with_many_checkpoints_go_like_others(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start(f"r{n}") for n in range(5)])
    for claim in named(await ada.claim(), *(f"r{n}" for n in range(5))):
        clock.advance(ms=1)
        await ada.save(claim, *(checkpoint(f"k{n}") for n in range(4000)))
        await ada.settle(claim, body="1")
    clock.advance(ms=1)
    await end(ada, store, "small")
    assert await store.prune(EVERYTHING, limit=4) == 4
    assert await left(store) == ["r4", "small"]
    assert await store.prune(EVERYTHING, limit=4) == 2


async def test_a_parent_that_lives_again_keeps_its_children(store: Store, ada: Worker) -> None:
    await store.enqueue([start("p")])
    await ada.settle(await ada.claim_one(), To.FAILED, '"x"')
    await store.enqueue([start("c", parent="p")])
    await ada.settle(await ada.claim_one(), body="1")
    await store.retry("p")
    assert await store.prune(EVERYTHING, limit=9) == 0
    await ada.settle(await ada.claim_one(), body="1")
    assert await store.prune(EVERYTHING, limit=9) == 2


async def test_children_may_outlive_a_parent_that_was_pruned(store: Store, ada: Worker) -> None:
    await store.enqueue([start("p")])
    parent = await ada.claim_one()
    await store.enqueue([start("c", parent="p")])
    await ada.settle(parent, body="1")
    assert await store.prune(EVERYTHING, limit=9) == 1
    assert (await record(store, "c")).state == State.QUEUED
    await ada.settle(await ada.claim_one(), body="1")
    assert await store.prune(EVERYTHING, limit=9) == 1


async def test_a_run_that_was_retried_is_not_pruned(store: Store, ada: Worker, clock: ManualClock) -> None:
    await end(ada, store, "a", to=To.FAILED)
    await store.retry("a")
    clock.advance(ms=DAY)
    assert await store.prune(EVERYTHING, limit=9) == 0
    await ada.settle(await ada.claim_one(), body="1")
    assert await store.prune([Retention(age=HOUR)], limit=9) == 0
    assert await store.prune([Retention(count=0)], limit=9) == 1


async def test_several_that_prune_at_once_remove_each_run_once(store: Store, ada: Worker, other: Store) -> None:
    await end(ada, store, *(f"r{n:02}" for n in range(40)))
    counts = await asyncio.gather(*(each.prune([Retention(count=10)], limit=50) for each in (store, other) * 3))
    assert sum(counts) == 30
    assert len(await left(other)) == 10


async def test_an_id_may_be_used_again_after_its_run_was_pruned(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a", input="1", labels={"x": "1"})])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("k"))
    await ada.settle(claim, body='"old"')
    await store.prune(EVERYTHING, limit=9)
    assert (await ada.save(claim, checkpoint("late"))).refused == [claim.token]
    await store.enqueue([start("a", input="2")])
    run = await record(store, "a")
    assert (run.input, run.body, run.labels, run.state) == ("2", None, {}, State.QUEUED)
    assert await store.history("a") == []


async def test_a_run_that_waits_for_one_that_was_pruned_went_on_before(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a"), start("b")])
    a, b = await ada.claim()
    await ada.park(b, for_run("a"))
    await ada.settle(a, body="1")
    assert await store.prune(EVERYTHING, limit=9) == 1
    assert [claim.id for claim in await ada.claim()] == ["b"]


async def test_counts_and_lists_know_nothing_of_what_was_pruned(store: Store, ada: Worker) -> None:
    await end(ada, store, "a", "b", to=To.FAILED)
    await end(ada, store, "c")
    await store.prune([Retention(count=1)], limit=9)
    assert [(count.state, count.runs) for count in await store.counts()] == [(State.SUCCEEDED, 1)]
    assert await store.runs(RunQuery(states=[State.FAILED])) == []
    assert await store.failures(RunQuery()) == []


@pytest.mark.parametrize("how", ["pruned", "deleted"])
async def test_numbers_are_not_used_again(store: Store, ada: Worker, how: str) -> None:
    await end(ada, store, "a", "b")
    before = (await record(store, "b")).position
    if how == "pruned":
        assert await store.prune(EVERYTHING, limit=100) == 2
    else:
        await store.delete("b")
    await store.enqueue([start("c")])
    assert (await record(store, "c")).position > before


async def test_a_group_is_not_put_last_by_what_was_pruned(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"old{n}", group="g") for n in range(50)])
    while claims := await ada.claim():
        await ada.settle(claims[0])
    assert await store.prune(EVERYTHING, limit=100) == 50
    await store.enqueue([start(f"g{n}", group="g") for n in range(3)])
    await store.enqueue([start(f"plain{n}") for n in range(20)])
    order: list[str] = []
    while claims := await ada.claim(1):
        order += [claim.id for claim in claims]
        await ada.settle(claims[0])
    assert [order.index(f"g{n}") for n in range(3)] == [0, 21, 22]
