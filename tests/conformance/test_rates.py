"""Rates: how many runs may begin in a time, exactly, by the store's clock, whatever the number of workers."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from conformance.kit import (
    BILL,
    EVERYTHING,
    SHIP,
    URGENT,
    ManualClock,
    Worker,
    drain,
    for_run,
    for_signal,
    for_timer,
    ids,
    of_group,
    of_queue,
    of_workflow,
    record,
    settle,
    start,
    worker,
)
from perdure.model import Limits, Millis, Rate, Scope, Signal, State
from perdure.stores.base import Store
from perdure.stores.exchange import CLAIM_BYTES, To

pytestmark = pytest.mark.anyio


def per_second(count: int, burst: int = 1) -> Limits:
    return Limits(rate=Rate(count, 1000, burst))


@pytest.mark.one_partition("a rate that is not a group's")
async def test_at_first_a_burst_begins_and_then_one_after_the_other(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.set_limits(of_queue(), per_second(2, burst=3), "ada")
    await store.enqueue([start(f"r{n}") for n in range(6)])
    reply = await ada.exchange(slots=10)
    assert (ids(reply.claims), reply.more, reply.next_at) == (["r0", "r1", "r2"], False, clock.now() + 500)
    clock.advance(ms=499)
    reply = await ada.exchange(slots=10)
    assert (reply.claims, reply.next_at) == ([], clock.now() + 1)
    clock.advance(ms=1)
    assert ids(await ada.claim()) == ["r3"]
    clock.advance(ms=1000)
    assert ids(await ada.claim()) == ["r4", "r5"]


@pytest.mark.one_partition("a rate that is not a group's")
async def test_the_reason_says_when(store: Store, ada: Worker) -> None:
    await store.set_limits(of_queue(), Limits(rate=Rate(100, 60_000, 1)), "ada")
    await store.enqueue([start("a"), start("b")])
    await ada.claim()
    held = (await record(store, "b")).held
    assert held == "queue default may begin its next run at 2023-11-14 22:13:20 UTC (100/min)"


@pytest.mark.one_partition("a rate that is not a group's")
async def test_a_burst_comes_back_only_as_far_as_it_is_allowed(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_queue(), per_second(10, burst=2), "ada")
    await store.enqueue([start() for _ in range(10)])
    assert len(await ada.claim()) == 2
    clock.advance(ms=3_600_000)
    assert len(await ada.claim()) == 2


@pytest.mark.parametrize("scope", [EVERYTHING, of_queue(), of_workflow(SHIP), of_group("g")])
@pytest.mark.parametrize(("count", "period", "burst"), [(3, 1000, 1), (7, 100, 3), (1, 333, 2), (1000, 7, 5)])
async def test_in_any_window_no_more_begin_than_the_rate_allows(
    store: Store, clock: ManualClock, scope: object, count: int, period: Millis, burst: int
) -> None:
    rng = random.Random(count)
    await store.set_limits(scope, Limits(rate=Rate(count, period, burst)), "ada")  # type: ignore[arg-type]
    await store.enqueue([start(group="g", group_limit=50) for _ in range(120)])
    workers = [await worker(store, lease=10**9) for _ in range(3)]
    began: list[Millis] = []
    mine: dict[int, list[object]] = {each.id: [] for each in workers}
    for _ in range(300):
        each = rng.choice(workers)
        said = [settle(claim, rng.choice([To.SUCCEEDED, To.RETRY, To.RELEASE]), '"x"') for claim in mine[each.id]]  # type: ignore[arg-type]
        reply = await each.exchange(slots=rng.randint(0, 6), settles=said)
        mine[each.id] = list(reply.claims)
        began += [clock.now()] * len(reply.claims)
        clock.advance(ms=rng.choice([0, 1, 5, period // count + 1, period, -period]))
    assert len(began) > burst
    # By a clock that never goes back: what begins while the clock is behind begins at its latest time.
    began = list(accumulate(began, max))
    for first, at in enumerate(began):
        for last in range(first, min(len(began), first + 60)):
            assert (last - first + 1 - burst) * period <= (began[last] - at) * count


@pytest.mark.one_partition("a rate that is not a group's")
async def test_a_rate_is_used_up_whole(store: Store, ada: Worker, clock: ManualClock) -> None:
    """Who comes at each `next_at` gets all that the rate allows, to the millisecond."""
    await store.set_limits(of_queue(), per_second(3, burst=2), "ada")
    await store.enqueue([start() for _ in range(32)])
    begin, count = clock.now(), 0
    while True:
        reply = await ada.exchange(slots=5)
        count += len(reply.claims)
        if count == 32:
            break
        assert reply.next_at is not None
        clock.advance(ms=reply.next_at - clock.now())
    assert clock.now() - begin == 10_000


@pytest.mark.one_partition("a rate that is not a group's")
async def test_what_is_claimed_again_begins_again(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_queue(), per_second(1), "ada")
    await store.enqueue([start("a")])
    await ada.park(await ada.claim_one(), for_timer(clock.now() + 10))
    clock.advance(ms=10)
    reply = await ada.exchange(slots=1)
    assert (reply.claims, reply.next_at) == ([], clock.now() + 990)
    clock.advance(ms=990)
    assert ids(await ada.claim()) == ["a"]


@pytest.mark.one_partition("a rate that is not a group's")
async def test_one_rate_holds_up_no_other_queue(store: Store, ada: Worker) -> None:
    await store.set_limits(of_workflow(SHIP), per_second(1), "ada")
    await store.enqueue([start(f"s{n}") for n in range(100)] + [start("b", workflow=BILL)])
    assert ids(await ada.claim()) == ["s0", "b"]


@pytest.mark.one_partition("a rate that is not a group's")
async def test_a_changed_rate_counts_on(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_queue(), per_second(1, burst=2), "ada")
    await store.enqueue([start(f"r{n}") for n in range(9)])
    assert len(await ada.claim()) == 2
    await store.set_limits(of_queue(), per_second(10, burst=2), "ada")
    assert await ada.claim() == []
    clock.advance(ms=100)
    assert len(await ada.claim()) == 1
    await store.set_limits(of_queue(), Limits(), "ada")
    assert len(await ada.claim()) == 6


@pytest.mark.one_partition("the order within a queue")
async def test_a_run_of_a_rated_group_is_put_off_once(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_group("g"), per_second(1), "ada")
    await store.enqueue([start(f"g{n}", group="g") for n in range(3)] + [start("plain")])
    claims = await ada.claim()
    assert ids(claims) == ["g0", "plain"]
    await ada.settle(claims[0])
    reply = await ada.exchange(slots=5)
    assert (reply.claims, reply.more, reply.next_at) == ([], False, clock.now() + 1000)
    late = await record(store, "g1")
    assert (late.state, late.wake_at) == (State.SCHEDULED, clock.now() + 1000)
    assert late.held == "group g may begin its next run at 2023-11-14 22:13:21 UTC (1/s)"
    behind = f"group g is full (1 of 1: run g1, which does not run: {late.held})"
    assert (await record(store, "g2")).held == behind
    clock.advance(ms=1000)
    assert ids(await ada.claim()) == ["g1"]


async def test_a_run_that_was_put_off_gives_its_turn_to_one_that_comes_first(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.set_limits(of_group("g"), per_second(1), "ada")
    await store.enqueue([start(f"g{n}", group="g") for n in range(2)])
    await ada.settle(await ada.claim_one())
    assert await ada.claim() == []
    await store.enqueue([start("urgent", group="g", priority=-1)])
    shown = await record(store, "g1")
    late = "group g may begin its next run at 2023-11-14 22:13:21 UTC (1/s)"
    full = f"group g is full (1 of 1: run urgent, which does not run: {late})"
    assert (shown.state, shown.wake_at, shown.held) == (State.QUEUED, None, full)
    assert await ada.claim() == []
    clock.advance(ms=1000)
    assert ids(await ada.claim()) == ["urgent"]


async def test_a_run_that_was_put_off_can_be_cancelled(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_group("g"), per_second(1), "ada")
    await store.enqueue([start(f"g{n}", group="g") for n in range(3)])
    await ada.settle(await ada.claim_one())
    assert await ada.claim() == []
    await store.cancel("g1", "x")
    clock.advance(ms=1000)
    assert ids(await ada.claim()) == ["g2"]


async def test_a_run_that_was_put_off_is_not_woken_by_what_else_it_waited_for(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.set_limits(of_group("g"), Limits(rate=Rate(1, 3_600_000, 1)), "ada")
    await store.enqueue([start("a", group="g"), start("b")])
    claims = {claim.id: claim for claim in await ada.claim()}
    await ada.park(claims["a"], for_run("b"), for_signal("go"))
    await store.signal(Signal("s", "a", "go", "1"))
    assert await ada.claim() == []
    late = await record(store, "a")
    await ada.settle(claims["b"])
    assert late.state is State.SCHEDULED and await record(store, "a") == late


async def test_a_lowered_limit_holds_for_what_a_rate_put_off(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_group("g"), per_second(1), "ada")
    await store.enqueue([start(f"g{n}", group="g", group_limit=10) for n in range(10)])
    assert ids(await ada.claim()) == ["g0"]
    await store.set_limits(of_group("g"), Limits(running=1, rate=Rate(1, 1000, 1)), "ada")
    for _ in range(20):
        clock.advance(ms=1000)
        assert await ada.claim() == []


async def test_what_comes_back_over_a_lowered_limit_waits_for_the_rate(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    """Who is put off runs no more than who waits for a signal: the next one that has begun comes in its place."""
    rate = Rate(3, 3000, 3)
    await store.set_limits(of_group("g"), Limits(running=3, rate=rate), "ada")
    await store.enqueue([start(run_id, group="g") for run_id in "abc"])
    claims = await ada.claim()
    await store.set_limits(of_group("g"), Limits(running=1, rate=rate), "ada")
    for claim in claims:
        await ada.settle(claim, To.RELEASE)
    for _ in claims:
        assert await bob.claim() == []
    late = [await record(store, run_id) for run_id in "abc"]
    now = clock.now()
    assert [each.wake_at for each in late] == [now + 1000, now + 2000, now + 3000]
    assert {each.held.partition(" at ")[0] for each in late if each.held} == {"group g may begin its next run"}


async def test_who_comes_in_the_place_of_one_that_is_put_off_is_told_of_whatever_its_workflow(
    store: Store, ada: Worker, bob: Worker
) -> None:
    rate = Rate(2, 2000, 2)
    await store.set_limits(of_group("g"), Limits(running=2, rate=rate), "ada")
    await store.enqueue([start("a", group="g"), start("b", group="g", workflow=BILL)])
    claims = await ada.claim()
    await store.set_limits(of_group("g"), Limits(running=1, rate=rate), "ada")
    for claim in claims:
        await ada.settle(claim, To.RELEASE)
    reply = await bob.exchange(slots=5)
    while reply.more:
        reply = await bob.exchange(slots=5)
    assert [(await record(store, run_id)).state for run_id in "ab"] == [State.SCHEDULED, State.SCHEDULED]


async def test_a_pause_does_not_end_what_a_rate_put_off(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_group("g"), per_second(1), "ada")
    await store.enqueue([start("g0", group="g")])
    await ada.settle(await ada.claim_one(), To.RETRY, "1")  # It has begun, and keeps its slot.
    assert await ada.claim() == []
    for paused in (True, False):
        await store.pause(of_group("g"), "ada", paused=paused)
        late = await record(store, "g0")
        assert (late.state, late.wake_at) == (State.SCHEDULED, clock.now() + 1000)
    clock.advance(ms=1000)
    assert ids(await ada.claim()) == ["g0"]


@pytest.mark.parametrize("limits", [Limits(), per_second(1000), per_second(1, burst=9), Limits(running=10)])
async def test_what_was_put_off_is_free_when_the_rate_changes(
    store: Store, ada: Worker, clock: ManualClock, limits: Limits
) -> None:
    await store.set_limits(of_group("g"), Limits(rate=Rate(1, 3_600_000, 1)), "ada")
    await store.enqueue([start(f"g{n}", group="g", group_limit=10) for n in range(5)])
    assert ids(await ada.claim()) == ["g0"]
    await store.set_limits(of_group("g"), limits, "ada")
    clock.advance(ms=4_000)
    order: list[str] = []
    for _ in range(4):
        order += ids(await ada.claim())
        clock.advance(ms=1)
    assert order == ["g1", "g2", "g3", "g4"]


async def test_those_that_are_put_off_come_one_by_one(store: Store, ada: Worker, clock: ManualClock) -> None:
    """So that what one start costs does not depend on how many of its group wait for the rate."""
    await store.set_limits(of_group("g"), per_second(2, burst=2), "ada")
    await store.enqueue([start(f"g{n}", group="g", group_limit=100) for n in range(40)])
    begin = clock.now()
    assert len(await drain(ada)) == 2
    times = [(await record(store, f"g{n}")).wake_at for n in range(2, 40)]
    assert times == [begin + 500 * n for n in range(1, 39)]
    for n in range(2, 40):
        clock.advance(ms=500)
        assert ids(await ada.claim()) == [f"g{n}"]


async def test_who_comes_later_is_put_off_in_order(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_group("g"), per_second(1), "ada")
    await store.enqueue([start(f"g{n}", group="g", group_limit=100) for n in range(4)])
    assert ids(await drain(ada)) == ["g0"]
    await store.enqueue([start("late", group="g"), start("urgent", group="g", priority=-1)])
    assert await drain(ada) == []
    order: list[str] = []
    for _ in range(5):
        clock.advance(ms=1000)
        order += ids(await ada.claim())
    assert order == ["urgent", "g1", "g2", "g3", "late"]


async def test_an_urgent_run_comes_before_one_that_was_put_off(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_group("g"), per_second(1), "ada")
    await store.enqueue([start(f"g{n}", group="g") for n in range(3)])
    await ada.settle(await ada.claim_one())
    assert await ada.claim() == []
    await store.enqueue([start("urgent", group="g", priority=-1)])
    assert ((await record(store, "g1")).held or "").startswith("group g is full (1 of 1: run urgent, ")
    assert await ada.claim() == []
    order: list[str] = []
    for _ in range(3):
        clock.advance(ms=1000)
        claim = await ada.claim_one()
        order.append(claim.id)
        await ada.settle(claim)
    assert order == ["urgent", "g1", "g2"]


@pytest.mark.one_partition("a rate that is not a group's")
async def test_a_repeated_claim_is_counted_once(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_queue(), per_second(1, burst=2), "ada")
    await store.enqueue([start(f"r{n}") for n in range(4)])
    first = await ada.claim(1)
    assert ids((await ada.repeat()).claims) == ids(first)
    assert ids(await ada.claim()) == ["r1"]
    assert await ada.claim() == []


@pytest.mark.one_partition("a rate that is not a group's")
async def test_runs_that_did_not_fit_into_the_bytes_have_not_begun(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.set_limits(of_queue(), per_second(1, burst=4), "ada")
    await store.enqueue([start(f"r{n}", input='"' + "x" * (CLAIM_BYTES // 2 - 50_000) + '"') for n in range(5)])
    reply = await ada.exchange(slots=5)
    assert (len(reply.claims), reply.more) == (2, True)
    reply = await ada.exchange(slots=5)
    assert (len(reply.claims), reply.more) == (2, False)


@pytest.mark.one_partition("the order within a queue")
async def test_the_bytes_of_an_exchange_are_bounded_however_often_it_looks(store: Store, ada: Worker) -> None:
    await store.set_limits(of_group("g"), per_second(1), "ada")
    await store.enqueue([start("g0", group="g", group_limit=9)])
    assert ids(await ada.claim()) == ["g0"]
    big = '"' + "x" * (CLAIM_BYTES // 2 - 50_000) + '"'
    await store.enqueue([start("big0", input=big), *[start(f"g{n}", group="g") for n in range(1, 4)]])
    await store.enqueue([start(f"big{n}", input=big) for n in range(1, 4)])
    reply = await ada.exchange(slots=4)
    assert (ids(reply.claims), reply.more) == (["big0", "big1"], True)


@pytest.mark.one_partition("a rate that is not a group's")
async def test_a_clock_that_goes_back_lets_nothing_begin_too_soon(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.set_limits(of_queue(), per_second(1), "ada")
    await store.enqueue([start(), start()])
    await ada.claim()
    clock.advance(ms=-5000)
    assert await ada.claim() == []
    clock.advance(ms=6000)
    assert len(await ada.claim()) == 1


@pytest.mark.parametrize("scope", [EVERYTHING, of_queue(), of_workflow(SHIP), of_group("g")])
@pytest.mark.one_partition("a rate that is not a group's")
async def test_a_burst_is_used_once_while_the_clock_is_behind(
    store: Store, ada: Worker, clock: ManualClock, scope: Scope
) -> None:
    await store.set_limits(scope, per_second(1, burst=5), "ada")
    await store.enqueue([start(group="g", group_limit=100) for _ in range(100)])
    assert len(await ada.claim(1)) == 1
    clock.advance(ms=-500)
    assert sum([len(await ada.claim(3)) for _ in range(30)]) == 4
    clock.advance(ms=500)
    assert await ada.claim() == []
    clock.advance(ms=1000)
    assert len(await ada.claim()) == 1


@pytest.mark.one_partition("the order within a queue")
async def test_what_stands_behind_runs_that_are_put_off_keeps_its_place(store: Store, ada: Worker) -> None:
    """A claim looks at the first runs of each lane; it must not take another lane's for want of a second look."""
    await store.set_limits(of_group("g"), per_second(1), "ada")
    await store.enqueue([start("g0", group="g", group_limit=2)])
    await ada.claim()
    await store.enqueue([start("g1", group="g", group_limit=2), start("first"), start("second", workflow=BILL)])
    assert ids(await ada.claim(1)) == ["first"]
    assert ids(await ada.claim(1)) == ["second"]


@pytest.mark.parametrize("limits", [Limits(), per_second(10), Limits(running=1)])
async def test_runs_that_were_put_off_begin_as_soon_as_another_rate_lets_them(
    store: Store, ada: Worker, clock: ManualClock, limits: Limits
) -> None:
    await store.set_limits(of_group("g"), Limits(rate=Rate(1, 86_400_000, 1)), "ada")
    await store.enqueue([start(f"g{n}", group="g") for n in range(2)])
    await ada.settle(await ada.claim_one())
    assert await ada.claim() == []
    assert (await record(store, "g1")).state == State.SCHEDULED
    await store.set_limits(of_group("g"), limits, "ada")
    clock.advance(ms=100)
    assert ids(await ada.claim()) == ["g1"]
    assert (await record(store, "g1")).held is None


@pytest.mark.parametrize("scope", [EVERYTHING, of_queue(), of_group("g")])
@pytest.mark.one_partition("a rate that is not a group's")
async def test_of_a_clock_that_was_a_year_ahead_nothing_is_left(
    store: Store, ada: Worker, clock: ManualClock, scope: Scope
) -> None:
    year = 365 * 86_400_000
    await store.set_limits(scope, per_second(2), "ada")
    await store.enqueue([start(group="g", group_limit=50) for _ in range(3)])
    clock.advance(ms=year)
    assert len(await ada.claim(1)) == 1
    clock.advance(ms=-year)
    assert len(await ada.claim(1)) == 1
    reply = await ada.exchange(slots=1)
    assert (reply.claims, reply.next_at) == ([], clock.now() + 500)
    clock.advance(ms=500)
    assert len(await ada.claim(1)) == 1


async def test_who_comes_in_the_place_of_one_that_is_put_off_is_looked_at_too(store: Store, ada: Worker) -> None:
    await store.enqueue([start(run, group="g", group_limit=2) for run in ("a", "b")])
    claims = await ada.claim()
    await ada.exchange(settles=[settle(claim, To.RELEASE) for claim in claims])
    await store.set_limits(of_group("g"), Limits(1, Rate(1, 3_000, 1)), "ada")
    await store.enqueue([start("spends", queue=URGENT, group="g")])
    assert ids(await ada.claim(1)) == ["spends"]
    reply = await ada.exchange(slots=2)
    while reply.more:
        reply = await ada.exchange(slots=2)
    assert reply.claims == []
    for run in ("a", "b"):  # none that only the rate keeps is left where the worker does not look again
        found = await record(store, run)
        assert found.state is State.SCHEDULED or "group g is full" in (found.held or "")
