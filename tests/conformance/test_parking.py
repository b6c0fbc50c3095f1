"""Parking: a run waits without an owner, and what it waits for wakes it in the same transaction."""

from __future__ import annotations

import pytest

from conformance.kit import (
    DAY,
    ManualClock,
    Worker,
    checkpoint,
    for_run,
    for_signal,
    for_timer,
    ids,
    message,
    record,
    settle,
    start,
    watch,
    with_token,
    worker,
)
from perdure.errors import RunEnded, RunNotFound
from perdure.model import Ended, Kind, Retention, State
from perdure.stores.base import Store
from perdure.stores.exchange import Claim, To

pytestmark = pytest.mark.anyio


async def begin(store: Store, served: Worker, run_id: str = "r") -> Claim:
    await store.enqueue([start(run_id)])
    return await served.claim_one()


async def test_a_parked_run_waits_without_an_owner(store: Store, ada: Worker, clock: ManualClock) -> None:
    claim = await begin(store, ada)
    waits = [for_timer(clock.now() + DAY), for_signal("a"), for_run("x", at=clock.now() + 2 * DAY)]
    await store.enqueue([start("x", delay=9 * DAY)])
    reply = await ada.exchange(settles=[settle(claim, To.PARK, waits=waits)], slots=1)
    assert (reply.claims, reply.refused) == ([], [])
    run = await record(store, "r")
    assert (run.state, run.worker, run.attempt) == (State.WAITING, None, 1)
    assert sorted(run.waits, key=lambda wait: wait.key) == sorted(waits, key=lambda wait: wait.key)


async def test_a_timer_wakes_its_run_when_it_is_due_and_not_before(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    reply = await ada.park(await begin(store, ada), for_timer(clock.now() + 100))
    assert reply.next_at == clock.now() + 100
    clock.advance(ms=99)
    assert await ada.claim() == []
    clock.advance(ms=1)
    claim = await ada.claim_one()
    assert (claim.id, claim.attempt, claim.cut_off) == ("r", 1, False)


async def test_the_earliest_timer_is_next(store: Store, ada: Worker, clock: ManualClock) -> None:
    now = clock.now()
    await ada.park(await begin(store, ada, "a"), for_timer(now + 300), for_timer(now + 200, key="two"))
    await ada.park(await begin(store, ada, "b"), for_signal(at=now + 100))
    assert (await ada.exchange()).next_at == now + 100
    clock.advance(ms=100)
    assert ids(await ada.claim()) == ["b"]
    assert (await ada.exchange()).next_at == now + 200


async def test_a_timer_that_was_due_already_parks_nothing(store: Store, ada: Worker, clock: ManualClock) -> None:
    claim = await begin(store, ada)
    reply = await ada.exchange(settles=[settle(claim, To.PARK, waits=[for_timer(clock.now())])], slots=1)
    assert ids(reply.claims) == ["r"]


async def test_a_signal_wakes_the_run_that_waits_for_it(store: Store, ada: Worker) -> None:
    await ada.park(await begin(store, ada), for_signal("approve"))
    await store.signal(message("r", "approve", '"yes"'))
    assert (await record(store, "r")).state == State.QUEUED
    claim = await ada.claim_one()
    assert [(arrived.name, arrived.body) for arrived in claim.signals] == [("approve", '"yes"')]


async def test_a_signal_of_another_name_wakes_nobody_and_is_kept(store: Store, ada: Worker) -> None:
    await ada.park(await begin(store, ada), for_signal("approve"))
    await store.signal(message("r", "Approve", "1"))
    assert (await record(store, "r")).state == State.WAITING
    await store.signal(message("r", "approve", "2"))
    assert [arrived.body for arrived in (await ada.claim_one()).signals] == ["1", "2"]


async def test_a_signal_that_came_before_the_wait_is_not_waited_for(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await store.signal(message("r", body="1"))
    claim = await ada.claim_one()
    reply = await ada.exchange(settles=[settle(claim, To.PARK, waits=[for_signal()])], slots=1)
    assert [arrived.body for arrived in reply.claims[0].signals] == ["1"]


async def test_a_signal_that_comes_while_the_run_runs_is_not_lost(store: Store, ada: Worker) -> None:
    claim = await begin(store, ada)
    await store.signal(message("r"))
    await ada.park(claim, for_signal())
    assert (await record(store, "r")).state == State.QUEUED


async def test_a_signal_that_was_consumed_wakes_no_more(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await store.signal(message("r"))
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("s", kind=Kind.SIGNAL), consumes=claim.signals[0].position)
    await ada.park(claim, for_signal())
    assert (await record(store, "r")).state == State.WAITING


async def test_signals_are_taken_in_order_and_each_once(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    for n in range(5):
        await store.signal(message("r", "even" if n % 2 == 0 else "odd", str(n)))
    taken: list[str] = []
    for n in range(5):
        claim = await ada.claim_one()
        first = claim.signals[0]
        taken.append(first.body)
        await ada.save(claim, checkpoint(f"s{n}", first.body, kind=Kind.SIGNAL), consumes=first.position)
        await ada.settle(claim, To.RELEASE)
    assert taken == ["0", "1", "2", "3", "4"]
    assert (await ada.claim_one()).signals == []


async def test_signals_of_a_run_are_read_page_by_page(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r"), start("other")])
    for n in range(10):
        await store.signal(message("r", body=str(n)))
    first = await store.signals("r", limit=6)
    assert [arrived.body for arrived in first] == ["0", "1", "2", "3", "4", "5"]
    rest = await store.signals("r", after=first[-1].position)
    assert [arrived.body for arrived in rest] == ["6", "7", "8", "9"]
    assert await store.signals("other") == await store.signals("missing") == []


async def test_a_signal_is_kept_for_a_run_that_is_not_due(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", delay=100)])
    await store.signal(message("r", body=r'"\u0000 é"'))
    assert (await record(store, "r")).state == State.SCHEDULED
    clock.advance(ms=100)
    assert [arrived.body for arrived in (await ada.claim_one()).signals] == [r'"\u0000 é"']


async def test_nobody_can_signal_a_run_that_is_not_there_or_has_ended(store: Store, ada: Worker) -> None:
    with pytest.raises(RunNotFound):
        await store.signal(message("missing"))
    await ada.settle(await begin(store, ada), body="1")
    with pytest.raises(RunEnded):
        await store.signal(message("r"))
    assert await store.signals("r") == []


async def test_a_wait_for_a_signal_gives_up_in_time(store: Store, ada: Worker, clock: ManualClock) -> None:
    await ada.park(await begin(store, ada), for_signal(at=clock.now() + 100))
    clock.advance(ms=100)
    claim = await ada.claim_one()
    assert (claim.id, claim.signals) == ("r", [])


@pytest.mark.parametrize("to", [To.SUCCEEDED, To.FAILED, To.CANCELLED])
async def test_the_end_of_a_run_wakes_who_waits_for_it(store: Store, ada: Worker, to: To) -> None:
    parent, child = await begin(store, ada, "parent"), await begin(store, ada, "child")
    await ada.park(parent, for_run("child"), for_signal())
    reply = await ada.exchange(settles=[settle(child, to, '"x"')], slots=1)
    assert [(claim.id, claim.ended) for claim in reply.claims] == [("parent", [Ended("child", State(to.value), '"x"')])]


async def test_a_run_that_has_ended_is_not_waited_for(store: Store, ada: Worker) -> None:
    await ada.settle(await begin(store, ada, "child"), body="1")
    parent = await begin(store, ada, "parent")
    reply = await ada.exchange(settles=[settle(parent, To.PARK, waits=[for_run("child")])], slots=1)
    assert [claim.ended for claim in reply.claims] == [[Ended("child", State.SUCCEEDED, "1")]]


@pytest.mark.parametrize("parked_first", [True, False])
async def test_a_run_that_ends_in_the_exchange_that_parks_for_it_is_not_missed(
    store: Store, ada: Worker, parked_first: bool
) -> None:
    parent, child = await begin(store, ada, "parent"), await begin(store, ada, "child")
    settles = [settle(parent, To.PARK, waits=[for_run("child")]), settle(child, body="1")]
    reply = await ada.exchange(settles=settles if parked_first else settles[::-1], slots=1)
    assert [(claim.id, claim.ended) for claim in reply.claims] == [("parent", [Ended("child", State.SUCCEEDED, "1")])]


@pytest.mark.one_partition("a wait for a run that is no child")
async def test_one_end_wakes_all_who_wait_for_it(store: Store, ada: Worker) -> None:
    child = await begin(store, ada, "child")
    waiting = [f"w{n}" for n in range(100)]
    for run_id in waiting:
        await ada.park(await begin(store, ada, run_id), for_run("child"))
    reply = await ada.exchange(settles=[settle(child, body="1")], slots=64)
    claims = reply.claims + await ada.claim()
    assert ids(claims) == waiting
    assert all(claim.ended == [Ended("child", State.SUCCEEDED, "1")] for claim in claims)


async def test_any_of_several_conditions_wakes(store: Store, ada: Worker, clock: ManualClock) -> None:
    children = [await begin(store, ada, run_id) for run_id in ("a", "b", "c")]
    waits = [for_run("a"), for_run("b"), for_run("c"), for_signal(), for_timer(clock.now() + 100)]
    parent = await begin(store, ada, "parent")
    await ada.park(parent, *waits)
    await ada.settle(children[1], body="2")
    claim = await ada.claim_one()
    assert (claim.id, claim.ended) == ("parent", [Ended("b", State.SUCCEEDED, "2")])


async def test_a_claim_brings_all_the_ends_since_the_run_was_parked(store: Store, ada: Worker) -> None:
    children = [await begin(store, ada, run_id) for run_id in ("a", "b", "c")]
    await ada.park(await begin(store, ada, "parent"), for_run("a"), for_run("b"), for_run("c"))
    await ada.exchange(settles=[settle(children[0], body="1"), settle(children[2], To.FAILED, "3")])
    claim = await ada.claim_one()
    assert {end.id: end.body for end in claim.ended} == {"a": "1", "c": "3"}


async def test_a_wake_leaves_no_wait_behind(store: Store, ada: Worker, clock: ManualClock) -> None:
    child = await begin(store, ada, "child")
    await ada.park(await begin(store, ada), for_timer(clock.now() + 100), for_signal(), for_run("child"))
    await store.signal(message("r"))
    assert (await record(store, "r")).waits == []
    claim = await ada.claim_one()
    assert (await ada.exchange()).next_at is None
    await ada.park(claim, for_signal("other"))
    await ada.settle(child, body="1")
    await store.signal(message("r", "approve"))
    clock.advance(ms=1000)
    assert await ada.claim() == []
    assert (await record(store, "r")).waits == [for_signal("other")]


async def test_a_parked_run_keeps_its_place(store: Store, ada: Worker) -> None:
    await ada.park(await begin(store, ada, "old"), for_signal())
    await store.enqueue([start("new")])
    await store.signal(message("old"))
    assert ids(await ada.claim()) == ["old", "new"]


async def test_a_parent_and_its_child_share_one_slot(store: Store) -> None:
    solo = await worker(store, concurrency=1)
    parent = await begin(store, solo, "parent")
    await solo.save(parent, checkpoint("c", kind=Kind.CHILD), starts=start("child", parent="parent"))
    reply = await solo.exchange(settles=[settle(parent, To.PARK, waits=[for_run("child")])], slots=1)
    assert ids(reply.claims) == ["child"]
    reply = await solo.exchange(settles=[settle(reply.claims[0], body="1")], slots=1)
    assert ids(reply.claims) == ["parent"]


async def test_a_watched_signal_is_seen_and_not_taken(store: Store, ada: Worker) -> None:
    claim = await begin(store, ada)
    watched = watch(claim, for_signal("approve", key="w"))
    assert (await ada.exchange(watches=[watched])).seen == []
    await store.signal(message("r", "other", "0"))
    await store.signal(message("r", "approve", "1"))
    await store.signal(message("r", "approve", "2"))
    for _ in range(2):
        [seen] = (await ada.exchange(watches=[watched])).seen
        assert (seen.ref, seen.token, seen.key, seen.ended) == (claim.ref, claim.token, "w", None)
        assert seen.signal == (await store.signals("r"))[1]
    assert len(await store.signals("r")) == 3


async def test_a_watched_run_is_seen_when_it_ends(store: Store, ada: Worker) -> None:
    parent, child = await begin(store, ada, "parent"), await begin(store, ada, "child")
    watched = watch(parent, for_run("child", key="w"))
    assert (await ada.exchange(watches=[watched])).seen == []
    [seen] = (await ada.exchange(settles=[settle(child, body="7")], watches=[watched])).seen
    assert (seen.token, seen.key, seen.signal) == (parent.token, "w", None)
    assert seen.ended == Ended("child", State.SUCCEEDED, "7")


@pytest.mark.parametrize("ended", [True, False])
async def test_a_run_that_is_gone_is_not_waited_for(store: Store, ada: Worker, ended: bool) -> None:
    parent, child = await begin(store, ada, "parent"), await begin(store, ada, "child")
    watched = watch(parent, for_run("child", key="w"))
    if ended:
        await ada.settle(child, body="1")
    await store.delete("child", force=True)
    [seen] = (await ada.exchange(watches=[watched])).seen
    assert (seen.key, seen.signal, seen.ended) == ("w", None, None)
    reply = await ada.exchange(settles=[settle(parent, To.PARK, waits=[for_run("child")])], slots=1)
    assert [(claim.id, claim.ended) for claim in reply.claims] == [("parent", [])]


async def test_a_wait_for_a_run_that_there_is_not_is_true_at_once(store: Store, ada: Worker) -> None:
    claim = await begin(store, ada)
    waits = [for_run("nobody", key="w"), for_signal()]
    reply = await ada.exchange(settles=[settle(claim, To.PARK, waits=waits)], slots=1)
    assert [(claim.id, claim.ended, claim.missing) for claim in reply.claims] == [("r", [], ["w"])]


async def test_a_run_that_is_deleted_wakes_those_who_wait_for_it(store: Store, ada: Worker) -> None:
    await begin(store, ada, "child")
    await ada.park(await begin(store, ada, "parent"), for_run("child", key="w"), for_signal())
    await store.delete("child", force=True)
    [claim] = await ada.claim()
    assert (claim.id, claim.ended, claim.missing) == ("parent", [], ["w"])


async def test_a_run_that_is_pruned_before_it_is_seen_is_told_of_as_missing(store: Store, ada: Worker) -> None:
    first, second = await begin(store, ada, "a"), await begin(store, ada, "b")
    await ada.park(await begin(store, ada, "r"), for_run("a", key="of-a"), for_run("b", key="of-b"))
    await ada.settle(first, body="1")
    assert await store.prune([Retention(count=0)], limit=9) == 1
    await ada.settle(second, body="2")
    [claim] = await ada.claim()
    assert (claim.ended, claim.missing) == ([Ended("b", State.SUCCEEDED, "2")], ["of-a"])


async def test_a_watched_run_that_is_deleted_is_seen_as_missing(store: Store, ada: Worker) -> None:
    claim = await begin(store, ada)
    await store.enqueue([start("other", delay=DAY)])
    watched = watch(claim, for_run("other", key="w"))
    assert (await ada.exchange(watches=[watched])).seen == []
    await store.delete("other", force=True)
    [seen] = (await ada.exchange(watches=[watched])).seen
    assert (seen.key, seen.ended, seen.missing) == ("w", None, True)


async def test_who_owns_nothing_sees_nothing(store: Store, ada: Worker) -> None:
    claim = await begin(store, ada)
    await store.signal(message("r"))
    forged = with_token(claim, claim.token + 100)
    reply = await ada.exchange(watches=[watch(forged, for_signal()), watch(claim, for_signal())])
    assert reply.refused == [forged.token]
    assert [seen.token for seen in reply.seen] == [claim.token]


MANY = 300


@pytest.mark.parametrize("at", [0, MANY // 2, MANY - 1])
@pytest.mark.parametrize("when", ["before", "at once", "later"])
async def test_any_of_many_waits_wakes_its_run(store: Store, ada: Worker, at: int, when: str) -> None:
    await store.enqueue([start(f"x{n}", delay=9 * DAY) for n in range(MANY)])
    claim = await begin(store, ada)
    if when == "before":
        await store.cancel(f"x{at}", "enough")
    await ada.exchange(settles=[settle(claim, To.PARK, waits=[for_run(f"x{n}") for n in range(MANY)])])
    if when == "later":
        while (await ada.exchange()).more:
            pass
    if when != "before":
        assert (await record(store, "r")).state is State.WAITING
        await store.cancel(f"x{at}", "enough")
    while (await ada.exchange()).more and (await record(store, "r")).state is State.WAITING:
        pass
    claim = await ada.claim_one()
    assert [(each.id, each.state) for each in claim.ended] == [(f"x{at}", State.CANCELLED)]
    # And any other one afterwards; one that is gone is told of by the key of the wait for it.
    other = MANY - 1 if at == 0 else 0
    waits = [for_run(f"x{n}") for n in range(MANY) if n != at]
    await ada.exchange(settles=[settle(claim, To.PARK, waits=waits)])
    await store.delete(f"x{other}", force=True)
    while (await ada.exchange()).more and (await record(store, "r")).state is State.WAITING:
        pass
    claim = await ada.claim_one()
    assert (claim.ended, claim.missing) == ([], [f"result:x{other}"])
    assert len((await record(store, "r")).waits) == 0
    await ada.settle(claim)


async def test_a_signal_or_a_time_wakes_a_run_among_many_waits(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start(f"x{n}", delay=9 * DAY) for n in range(MANY)])
    claim = await begin(store, ada)
    waits = [*(for_run(f"x{n}") for n in range(MANY)), for_signal("a"), for_timer(clock.now() + 100)]
    await ada.exchange(settles=[settle(claim, To.PARK, waits=waits)])
    assert len((await record(store, "r")).waits) == MANY + 2
    await store.signal(message("r", "a"))
    claim = await ada.claim_one()
    await ada.exchange(settles=[settle(claim, To.PARK, waits=[*waits[:MANY], waits[-1]])])
    clock.advance(ms=100)
    claim = await ada.claim_one()
    await ada.settle(claim)
