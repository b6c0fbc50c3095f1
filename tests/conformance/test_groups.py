"""Groups: runs of one key, as many at a time as its limit says, in order, whatever becomes of them."""

from __future__ import annotations

import asyncio
import random

import pytest

from conformance.kit import (
    BILL,
    LEASE,
    URGENT,
    ManualClock,
    Worker,
    all_runs,
    checkpoint,
    drain,
    for_run,
    for_signal,
    for_timer,
    ids,
    message,
    of_group,
    of_workflow,
    record,
    settle,
    start,
    worker,
)
from perdure.model import Limits, Rate, State
from perdure.stores.base import Store, Topic
from perdure.stores.exchange import Claim, To

pytestmark = pytest.mark.anyio


async def fill(store: Store, *names: str, group: str = "g", limit: int = 1, keep: bool = True) -> None:
    await store.enqueue([start(name, group=group, group_limit=limit, group_keep=keep) for name in names])


async def test_runs_of_a_group_go_one_after_the_other_in_order(store: Store, ada: Worker) -> None:
    await fill(store, "a", "b", "c")
    seen: list[str] = []
    for _ in range(3):
        [claim] = await ada.claim()
        seen.append(claim.id)
        assert claim.group == "g"
        assert await ada.claim() == []
        await ada.settle(claim)
    assert seen == ["a", "b", "c"]


async def test_a_group_may_have_a_higher_limit(store: Store, ada: Worker) -> None:
    await fill(store, "a", "b", "c", "d", limit=2)
    first = await ada.claim()
    assert ids(first) == ["a", "b"]
    reply = await ada.settle(first[1])
    assert reply.more
    assert ids(await ada.claim()) == ["c"]


async def test_settling_and_claiming_in_one_exchange_hands_the_slot_on(store: Store, ada: Worker) -> None:
    await fill(store, "a", "b")
    claim = await ada.claim_one()
    reply = await ada.exchange(slots=5, settles=[settle(claim)])
    assert ids(reply.claims) == ["b"]


async def test_groups_of_different_keys_and_queues_are_different(store: Store, ada: Worker) -> None:
    await fill(store, "a1", "a2")
    await fill(store, "b1", "b2", group="h")
    await store.enqueue([start("c1", group="g", queue=URGENT), start("c2", group="g", queue=URGENT)])
    assert sorted(ids(await ada.claim())) == ["a1", "b1", "c1"]


async def test_runs_of_all_workflows_share_their_group(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a", group="g"), start("b", group="g", workflow=BILL), start("c", group="g")])
    claim = await ada.claim_one()
    assert (claim.id, await ada.claim()) == ("a", [])
    await ada.settle(claim)
    assert ids(await ada.claim()) == ["b"]


async def test_within_a_group_a_lower_priority_number_is_first(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"{p}", group="g", priority=p) for p in (3, 1, 2)])
    order: list[str] = []
    while claims := await ada.claim():
        order += ids(claims)
        await ada.settle(claims[0])
    assert order == ["1", "2", "3"]


async def test_what_has_begun_is_not_overtaken(store: Store, ada: Worker) -> None:
    await fill(store, "a")
    claim = await ada.claim_one()
    await store.enqueue([start("b", group="g", priority=-5)])
    await ada.settle(claim, To.RELEASE)
    assert ids(await ada.claim()) == ["a"]


@pytest.mark.parametrize("to", [To.SUCCEEDED, To.FAILED, To.CANCELLED])
async def test_every_end_gives_the_slot_back(store: Store, ada: Worker, to: To) -> None:
    await fill(store, "a", "b")
    await ada.settle(await ada.claim_one(), to, '"x"')
    assert ids(await ada.claim()) == ["b"]


@pytest.mark.parametrize("to", [To.RETRY, To.RELEASE, To.CONTINUE])
async def test_what_goes_on_at_once_keeps_its_slot(store: Store, ada: Worker, to: To) -> None:
    await fill(store, "a", "b", keep=False)
    await ada.settle(await ada.claim_one(), to, '"x"')
    assert ids(await ada.claim()) == ["a"]


async def test_a_cancelled_run_frees_its_slot_or_its_place_in_the_line(store: Store, ada: Worker) -> None:
    await fill(store, "a", "b", "c")
    await store.cancel("b", "not needed")
    await store.cancel("a", "not needed")
    assert ids(await ada.claim()) == ["c"]


async def test_a_run_that_misses_its_deadline_frees_its_slot(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("a", group="g", timeout=10), start("b", group="g")])
    clock.advance(ms=10)
    assert ids(await ada.claim()) == ["b"]


async def test_poison_frees_its_slot(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("a", group="g", max_crashes=1), start("b", group="g")])
    await ada.claim_one()
    assert await store.bury(ada.name) == 1
    assert ids(await bob.claim()) == ["b"]


async def test_a_reclaimed_run_comes_first_again(store: Store, ada: Worker, bob: Worker, clock: ManualClock) -> None:
    await fill(store, "a", "b")
    await ada.claim_one()
    assert await bob.claim() == []
    clock.advance(ms=LEASE - 1)
    bob.renew()
    clock.advance(ms=1)
    await store.reclaim()
    assert ids(await bob.claim()) == ["a"]
    assert await bob.claim() == []


async def test_a_run_that_waits_keeps_its_slot(store: Store, ada: Worker) -> None:
    await fill(store, "a", "b")
    await ada.park(await ada.claim_one(), for_signal())
    assert await ada.claim() == []
    assert (await record(store, "b")).held == "group g is full (1 of 1: run a)"
    await store.signal(message("a"))
    assert ids(await ada.claim()) == ["a"]


async def test_a_full_group_tells_why_the_run_that_has_its_slot_does_not_run(store: Store, ada: Worker) -> None:
    await store.enqueue([start("old", group="g", version="3"), start("new", group="g")])
    full = "group g is full (1 of 1: run old, which does not run: "
    unserved = f"{full}no live worker serves version 3 of workflow ship on queue default)"
    assert (await record(store, "new")).held == unserved
    await store.pause(of_workflow(), "ada")
    assert ((await record(store, "new")).held or "").startswith(f"{full}workflow ship is paused by ada since ")
    await store.pause(of_workflow(), "ada", paused=False)
    newer = await worker(store, versions={"ship": ["3"]})
    assert (await record(store, "new")).held == "group g is full (1 of 1: run old)"
    assert ids(await newer.claim()) == ["old"]


async def test_a_run_that_waits_gives_up_its_slot_where_it_was_declared_so(store: Store, ada: Worker) -> None:
    await fill(store, "a", "b", "c", keep=False)
    await ada.park(await ada.claim_one(), for_signal())
    second = await ada.claim_one()
    assert second.id == "b"
    await store.signal(message("a"))
    assert (await record(store, "a")).held == "group g is full (1 of 1: run b)"
    await ada.settle(second)
    third = await ada.claim_one()
    assert third.id == "a"  # In its old order: before c.
    await ada.settle(third)
    assert ids(await ada.claim()) == ["c"]


@pytest.mark.parametrize(("keep", "next_"), [(True, []), (False, ["b"])])
async def test_a_run_that_backs_off_keeps_or_gives_up_its_slot(
    store: Store, ada: Worker, keep: bool, next_: list[str], clock: ManualClock
) -> None:
    await fill(store, "a", "b", keep=keep)
    await ada.settle(await ada.claim_one(), To.RETRY, '"x"', delay=100)
    claims = await ada.claim()
    assert ids(claims) == next_
    clock.advance(ms=100)
    if claims:
        assert await ada.claim() == []
        await ada.settle(claims[0])
    assert ids(await ada.claim()) == ["a"]


async def test_a_delayed_run_takes_part_when_it_is_due(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("later", group="g", delay=100), start("now", group="g")])
    now = await ada.claim_one()
    assert now.id == "now"
    clock.advance(ms=100)
    assert await ada.claim() == []
    assert (await record(store, "later")).state == State.QUEUED
    await ada.settle(now)
    assert ids(await ada.claim()) == ["later"]


async def test_a_retried_run_lines_up_again(store: Store, ada: Worker) -> None:
    await fill(store, "a", "b", "c")
    await ada.settle(await ada.claim_one(), To.FAILED, '"x"')
    second = await ada.claim_one()
    await store.retry("a")
    assert await ada.claim() == []
    await ada.settle(second)
    assert ids(await ada.claim()) == ["a"]


async def test_a_retired_worker_hands_its_slots_back(store: Store, ada: Worker, bob: Worker) -> None:
    await fill(store, "a", "b")
    await ada.claim_one()
    await store.retire(ada.id)
    assert ids(await bob.claim()) == ["a"]


async def test_the_stored_limit_holds_instead_of_the_one_of_the_start(store: Store, ada: Worker) -> None:
    await store.set_limits(of_group("g"), Limits(running=2), "ada")
    await fill(store, "a", "b", "c", limit=1)
    assert ids(await ada.claim()) == ["a", "b"]


async def test_a_raised_limit_lets_more_in_at_once(store: Store, ada: Worker) -> None:
    await fill(store, *"abcdef")
    assert ids(await ada.claim()) == ["a"]
    await store.set_limits(of_group("g"), Limits(running=4), "ada")
    assert ids(await ada.claim()) == ["b", "c", "d"]
    await store.set_limits(of_group("g"), Limits(), "ada")
    assert await ada.claim() == []


async def test_a_lowered_limit_holds_what_has_not_begun(store: Store, ada: Worker) -> None:
    await store.set_limits(of_group("g"), Limits(running=4), "ada")
    await fill(store, *"abcdef")
    begun = await ada.claim(2)
    await store.set_limits(of_group("g"), Limits(running=1), "ada")
    assert ids(begun) == ["a", "b"]
    assert await ada.claim() == []
    await ada.settle(begun[0])
    assert await ada.claim() == []
    await ada.settle(begun[1])
    assert ids(await ada.claim()) == ["c"]


async def test_the_start_that_makes_a_group_sets_its_limit(store: Store, ada: Worker) -> None:
    await fill(store, "a", "b", "c", limit=2)
    [higher] = await store.enqueue([start("d", group="g", group_limit=9)])
    [lower] = await store.enqueue([start("e", group="g", group_limit=1)])
    [same] = await store.enqueue([start("f", group="g", group_limit=2)])
    assert (higher.group_limit, lower.group_limit, same.group_limit) == (2, 2, None)
    assert ids(await ada.claim()) == ["a", "b"]
    assert await store.revisions() == []
    await store.set_limits(of_group("g"), Limits(running=3), "ada")
    [stored] = await store.enqueue([start("h", group="g", group_limit=3)])
    assert stored.group_limit is None
    assert ids(await ada.claim()) == ["c"]


async def test_of_a_batch_the_first_start_that_makes_a_run_sets_the_limit(store: Store, ada: Worker) -> None:
    await store.enqueue([start("there", workflow=BILL, group="other")])
    batch = [start("there", workflow=BILL, group="g", group_limit=9), start("a", group="g", group_limit=2)]
    batch += [start("a", group="g", group_limit=8), start("b", group="g", group_limit=7), start("c", group="g")]
    answers = await store.enqueue(batch)
    assert [answer.existed for answer in answers] == [True, False, True, False, False]
    assert [answer.group_limit for answer in answers] == [None, None, None, 2, 2]
    assert ids(await ada.claim()) == ["there", "a", "b"]


async def test_a_start_that_makes_nothing_changes_no_group(store: Store, ada: Worker) -> None:
    await fill(store, "a", "b", "c")
    await fill(store, "other", group="h")
    [again] = await store.enqueue([start("other", group="g", group_limit=5)])
    assert (again.existed, again.group_limit) == (True, None)
    assert sorted(ids(await ada.claim())) == ["a", "other"]


async def test_a_group_whose_runs_are_gone_begins_anew(store: Store, ada: Worker) -> None:
    await fill(store, "a")
    await ada.settle(await ada.claim_one())
    await store.delete("a")
    await fill(store, "b", "c", limit=2)
    assert ids(await ada.claim()) == ["b", "c"]


async def away(store: Store, ada: Worker, clock: ManualClock, how: str) -> None:
    """Ten runs of a group, all of which have begun and will come again in a second."""
    await fill(store, *"abcdefghij", limit=10)
    for claim in await ada.claim():
        if how == "parked":
            await ada.park(claim, for_timer(clock.now() + 1000))
        else:
            await ada.settle(claim, To.RETRY, '"x"', delay=1000)


@pytest.mark.parametrize("how", ["parked", "backing off"])
async def test_a_lowered_limit_holds_for_what_comes_again(
    store: Store, ada: Worker, clock: ManualClock, how: str
) -> None:
    """Those that have begun keep their slots, and yet no more run than the limit says, in order."""
    await away(store, ada, clock, how)
    await fill(store, "new")
    await store.set_limits(of_group("g"), Limits(running=2), "ada")
    clock.advance(ms=1000)
    first = await ada.claim()
    assert ids(first) == ["a", "b"]
    assert (await record(store, "c")).held == "group g is full (10 of 2: run a)"
    order: list[str] = []
    while first:
        order.append(first[0].id)
        reply = await ada.exchange(slots=9, settles=[settle(first.pop(0))])
        first += reply.claims
        assert len(first) <= 2
    assert "".join(order) == "abcdefghijnew"


async def test_what_goes_on_at_once_is_held_to_a_lowered_limit(store: Store, ada: Worker, bob: Worker) -> None:
    await fill(store, "a", "b", "c", limit=3)
    claims = await ada.claim()
    await store.set_limits(of_group("g"), Limits(running=1), "ada")
    await ada.settle(claims[0], To.RELEASE)
    await ada.settle(claims[1], To.RETRY, '"x"')
    assert await bob.claim() == []
    await ada.settle(claims[2], To.RELEASE)
    [only] = await bob.claim()
    assert only.id == "a"
    await bob.park(only, for_signal())
    [only] = await bob.claim()
    assert only.id == "b"


@pytest.mark.parametrize("how", ["raised", "lifted", "paused and resumed"])
async def test_what_a_lowered_limit_holds_is_free_when_it_rises(
    store: Store, ada: Worker, clock: ManualClock, how: str
) -> None:
    await away(store, ada, clock, "parked")
    await store.set_limits(of_group("g"), Limits(running=1), "ada")
    clock.advance(ms=1000)
    assert ids(await ada.claim()) == ["a"]
    if how == "paused and resumed":
        await store.pause(of_group("g"), "ada")
        assert (await record(store, "c")).held is not None
        assert await ada.claim() == []
        await store.pause(of_group("g"), "ada", paused=False)
        assert await ada.claim() == []
        await store.set_limits(of_group("g"), Limits(running=4), "ada")
        assert ids(await ada.claim()) == ["b", "c", "d"]
    else:
        await store.set_limits(of_group("g"), Limits(running=4 if how == "raised" else None), "ada")
        assert ids(await ada.claim()) == (["b", "c", "d"] if how == "raised" else list("bcdefghij"))


async def test_what_is_removed_makes_room_for_what_a_lowered_limit_holds(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await away(store, ada, clock, "parked")
    await store.set_limits(of_group("g"), Limits(running=1), "ada")
    clock.advance(ms=1000)
    assert ids(await ada.claim()) == ["a"]
    await store.cancel("b", "x")
    assert await ada.claim() == []
    await store.delete("a", force=True)
    assert ids(await ada.claim()) == ["c"]


async def test_a_start_that_existed_leaves_no_group_behind(store: Store, ada: Worker) -> None:
    await fill(store, "a")
    [again] = await store.enqueue([start("a", group="other")])
    assert again.existed
    assert (await record(store, "a")).group == "g"


@pytest.mark.parametrize("key", ["a b", "ключ:7/😀", "x" * 500, "'; --", '"'])
async def test_keys_of_groups_are_any_text(store: Store, ada: Worker, key: str) -> None:
    await fill(store, "a", "b", group=key)
    claim = await ada.claim_one()
    assert (claim.group, await ada.claim()) == (key, [])
    await ada.settle(claim)
    assert ids(await ada.claim()) == ["b"]


async def test_runs_without_a_group_are_not_held_up(store: Store, ada: Worker) -> None:
    await fill(store, *[f"g{n}" for n in range(100)])
    await store.enqueue([start("plain")])
    assert ids(await ada.claim()) == ["g0", "plain"]


async def test_a_group_comes_back_behind_what_was_enqueued_meanwhile(store: Store, ada: Worker) -> None:
    """Groups take turns: the next run of one comes after what the others have had ready for longer."""
    await fill(store, *[f"a{n}" for n in range(4)], group="a")
    await fill(store, *[f"b{n}" for n in range(2)], group="b")
    await store.enqueue([start("plain")])
    order: list[str] = []
    while claims := await ada.claim(1):
        order += ids(claims)
        await ada.settle(claims[0])
    assert order == ["a0", "b0", "plain", "a1", "b1", "a2", "a3"]


async def test_a_child_may_belong_to_the_group_of_its_parent_that_gives_up_its_slot(store: Store, ada: Worker) -> None:
    await fill(store, "parent", keep=False)
    parent = await ada.claim_one()
    await ada.save(parent, checkpoint("child"), starts=start("child", group="g", parent="parent"))
    assert await ada.claim() == []
    await ada.park(parent, for_run("child"))
    child = await ada.claim_one()
    assert child.id == "child"
    await ada.settle(child, body="1")
    assert ids(await ada.claim()) == ["parent"]


async def test_many_groups_drain_whole(store: Store, clock: ManualClock) -> None:
    """Whatever the mixture of ends, no slot is lost: at the end everything has ended."""
    starts = [start(f"r{n}", group=f"g{n % 7}", group_limit=1 + n % 3, group_keep=n % 2 == 0) for n in range(210)]
    await store.enqueue(starts)
    busy = await worker(store, lease=10**9)
    ended = 0
    while claims := await busy.claim(10):
        groups = [claim.group for claim in claims]
        assert all(groups.count(group) <= 3 for group in groups)
        for n, claim in enumerate(claims):
            if claim.attempt == 1 and n % 4 == 0:
                await busy.settle(claim, To.RETRY, '"x"', delay=5)
            elif claim.attempt == 1 and n % 4 == 1:
                await busy.settle(claim, To.RETRY, '"x"')
            else:
                await busy.settle(claim)
                ended += 1
        clock.advance(ms=5)
    clock.advance(ms=5)
    for claim in await drain(busy):
        await busy.settle(claim)
        ended += 1
    assert ended + await settle_rest(busy, clock) == 210


@pytest.mark.parametrize("seed", range(12))
async def test_no_more_run_than_the_limit_whatever_comes_and_goes(store: Store, clock: ManualClock, seed: int) -> None:
    """More run only when they did so before it was lowered; and nothing is left behind."""
    rng = random.Random(seed)
    busy = await worker(store, lease=10**12)
    limit, made = 3, 0
    running: dict[str, Claim] = {}
    for _ in range(250):
        before = set(running)
        what = rng.choice(["start", "claim", "claim", "settle", "settle", "settle", "limit", "rate", "pause", "time"])
        if what == "start":
            names = [f"r{made + n}" for n in range(rng.randint(1, 4))]
            made += len(names)
            await fill(store, *names, limit=3, keep=rng.random() < 0.7)
        elif what == "claim":
            running.update({claim.id: claim for claim in await busy.claim(rng.randint(1, 5))})
        elif what == "settle" and running:
            claim = running.pop(rng.choice(list(running)))
            to = rng.choice([To.SUCCEEDED, To.RELEASE, To.RETRY, To.PARK, To.PARK])
            delay = rng.choice([0, 50]) if to is To.RETRY else 0
            waits = [for_timer(clock.now() + rng.choice([10, 80]))] if to is To.PARK else []
            await busy.settle(claim, to, '"x"', delay=delay, waits=waits)
        elif what == "limit":
            limit = rng.choice([1, 2, 3, 6])
            await store.set_limits(of_group("g"), Limits(running=limit), "ada")
        elif what == "rate":
            await store.set_limits(of_group("g"), Limits(running=limit, rate=Rate(1, 10, 2)), "ada")
        elif what == "pause":
            await store.pause(of_group("g"), "ada", paused=rng.random() < 0.5)
        else:
            clock.advance(ms=rng.choice([1, 20, 100]))
        assert len(running) <= limit or set(running) <= before
    await store.pause(of_group("g"), "ada", paused=False)
    await store.set_limits(of_group("g"), Limits(running=1), "ada")
    for claim in running.values():
        await busy.settle(claim)
    for _ in range(10 * made):
        clock.advance(ms=100)
        for claim in await busy.claim():
            await busy.settle(claim)
    assert all(run.state is State.SUCCEEDED for run in await all_runs(store))


async def settle_rest(busy: Worker, clock: ManualClock) -> int:
    ended = 0
    clock.advance(ms=1000)
    while claims := await busy.claim():
        for claim in claims:
            await busy.settle(claim)
            ended += 1
    return ended


async def test_a_slot_that_goes_on_wakes_other_workers(store: Store, ada: Worker) -> None:
    await fill(store, "a", "b")
    claim = await ada.claim_one()
    woken = asyncio.Event()
    subscription = await store.subscribe(Topic.WORK, woken.set)
    await ada.settle(claim)
    await asyncio.wait_for(woken.wait(), 5)
    await subscription.close()
