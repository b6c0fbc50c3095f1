"""Schedules: kept by name, due by the store's clock, and each slot fired once by whoever sees it first."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from conformance.conftest import MakeStore
from conformance.kit import DAY, ManualClock, Worker, all_runs, for_signal, record, settle, start, worker
from perdure.cron import due_fires, next_slots, run_id
from perdure.errors import ScheduleNotFound
from perdure.model import Fire, Millis, Missed, Overlap, RunRecord, Schedule, ScheduleRecord, State, Unique, WaitFor
from perdure.stores.base import Store, Topic
from perdure.stores.exchange import Exchanged, To

pytestmark = pytest.mark.anyio

MINUTE: Millis = 60_000


def every(ms: Millis = MINUTE, name: str = "s", **options: object) -> Schedule:
    return replace(Schedule(name=name, every=ms, start=start("")), **options)


async def put(store: Store, schedule: Schedule, *, declared: bool = True) -> Millis:
    """Keeps a schedule that begins now; returns its first slot."""
    [slot] = next_slots(schedule, await store.now(), 1)
    await store.put_schedule(schedule, slot, declared=declared)
    return slot


def until(clock: ManualClock, at: Millis) -> None:
    clock.advance(ms=at - clock.now())


async def answer(worker: Worker, reply: Exchanged) -> Exchanged:
    """What a worker does about schedules that it was told are due."""
    fires = [fire for schedule in reply.due for fire in due_fires(schedule, reply.now)]
    return await worker.exchange(fires=fires) if fires else reply


async def work(worker: Worker) -> Exchanged:
    return await answer(worker, await worker.exchange())


async def only(store: Store) -> ScheduleRecord:
    [schedule] = await store.schedules()
    return schedule


async def made(store: Store) -> list[str]:
    return [run.id for run in await all_runs(store)]


# --- keeping them


async def test_schedules_are_kept_as_they_are_by_name(store: Store) -> None:
    one = Schedule(
        name="b", cron="0 9 * * mon-fri", tz="Europe/Berlin", start=start("", labels={"x": "1"}, unique=Unique("k")),
        missed=Missed.ALL, missed_limit=7, overlap=Overlap.QUEUE, jitter=5,
    )  # fmt: skip
    kept = await store.put_schedule(one, 5000, declared=True)
    assert kept == ScheduleRecord(schedule=one, paused=False, next_slot=5000, declared=True)
    other = await store.put_schedule(Schedule(name="a", at=9, start=start("")), 9, declared=False)
    assert await store.schedules() == [other, kept]


async def test_the_same_timing_keeps_slot_and_pause_and_another_one_begins_anew(store: Store) -> None:
    await store.put_schedule(every(), MINUTE, declared=True)
    await store.pause_schedule("s")
    kept = await store.put_schedule(every(overlap=Overlap.SKIP, jitter=9), 99, declared=True)
    assert (kept.next_slot, kept.paused, kept.schedule.overlap) == (MINUTE, True, Overlap.SKIP)
    other = await store.put_schedule(every(2 * MINUTE), 99, declared=True)
    assert (other.next_slot, other.paused) == (99, True)


async def test_what_was_added_at_run_time_is_not_overwritten_by_code(store: Store) -> None:
    await store.put_schedule(every(), 1, declared=True)
    added = await store.put_schedule(every(2 * MINUTE), 2, declared=False)
    assert not added.declared
    assert await store.put_schedule(every(3 * MINUTE), 3, declared=True) == added == await only(store)
    changed = await store.put_schedule(every(4 * MINUTE), 4, declared=False)
    assert changed.next_slot == 4


async def test_schedules_that_are_not_there(store: Store) -> None:
    for call in (store.pause_schedule("none"), store.resume_schedule("none", 1), store.remove_schedule("none")):
        with pytest.raises(ScheduleNotFound):
            await call


# --- being due


async def test_workers_know_of_the_next_slot_and_of_those_that_are_due(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    slot = await put(store, every())
    reply = await ada.exchange()
    assert (reply.next_at, reply.due) == (slot, [])
    until(clock, slot)
    reply = await ada.exchange()
    assert [due.schedule.name for due in reply.due] == ["s"]
    assert reply.next_at is None
    reply = await answer(ada, reply)
    assert (reply.next_at, reply.due) == (slot + MINUTE, [])
    assert await made(store) == [run_id("s", slot)]
    after = await only(store)
    assert (after.last_slot, after.last_run, after.next_slot) == (slot, run_id("s", slot), slot + MINUTE)


async def test_a_worker_without_free_slots_fires_and_a_claim_may_bring_the_run(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    slot = await put(store, every())
    until(clock, slot)
    due = (await ada.exchange(slots=0)).due
    reply = await ada.exchange(fires=due_fires(due[0], clock.now()), slots=1)
    assert [claim.id for claim in reply.claims] == [run_id("s", slot)]


async def test_a_store_with_many_schedules_tells_of_all_of_them_bit_by_bit(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    slot = max([await put(store, every(name=f"s{n}")) for n in range(35)])
    until(clock, slot)
    for _ in range(36):
        reply = await ada.exchange()
        if not reply.due:
            break
        await answer(ada, reply)
    assert len(await made(store)) == 35


async def test_a_single_slot_fires_once_and_stays_as_what_it_was(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.put_schedule(
        Schedule(name="once", at=clock.now() + 5, start=start("")), clock.now() + 5, declared=False
    )
    clock.advance(ms=DAY)
    await work(ada)
    assert (await work(ada)).next_at is None
    assert len(await made(store)) == 1
    assert (await only(store)).next_slot is None


async def test_workers_that_sleep_are_woken_for_a_new_schedule(store: Store) -> None:
    woken = asyncio.Event()
    subscription = await store.subscribe(Topic.WORK, woken.set)
    await put(store, every())
    await asyncio.wait_for(woken.wait(), 5)
    await subscription.close()


# --- once for each slot


async def test_five_workers_that_all_see_a_slot_due_fire_it_once(make_store: MakeStore, clock: ManualClock) -> None:
    store = await make_store()
    workers = [await worker(store) for _ in range(5)]
    slot = await put(store, every())
    for turn in range(5):
        until(clock, slot + turn * MINUTE)
        replies = await asyncio.gather(*(each.exchange() for each in workers))
        assert all(len(reply.due) == 1 for reply in replies)
        await asyncio.gather(*(answer(each, reply) for each, reply in zip(workers, replies, strict=True)))
    assert await made(store) == [run_id("s", slot + turn * MINUTE) for turn in range(5)]


async def test_two_processes_fire_a_slot_once(store: Store, other: Store, clock: ManualClock) -> None:
    workers = [await worker(each) for each in (store, other) for _ in range(3)]
    slot = await put(store, every(missed=Missed.ALL))
    for turn in range(4):
        until(clock, slot + (3 * turn + 2) * MINUTE)
        replies = await asyncio.gather(*(each.exchange() for each in workers))
        await asyncio.gather(*(answer(each, reply) for each, reply in zip(workers, replies, strict=True)))
    assert await made(other) == [run_id("s", slot + n * MINUTE) for n in range(12)]


async def test_a_reply_that_was_lost_fires_nothing_twice(store: Store, ada: Worker, clock: ManualClock) -> None:
    slot = await put(store, every(overlap=Overlap.CANCEL))
    until(clock, slot)
    await work(ada)
    await ada.repeat()
    clock.advance(ms=MINUTE)
    await ada.repeat()
    assert await made(store) == [run_id("s", slot)]
    assert (await record(store, run_id("s", slot))).state == State.QUEUED


async def test_a_worker_that_dies_between_seeing_and_firing_loses_nothing(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    slot = await put(store, every())
    until(clock, slot)
    seen = await ada.exchange()
    await store.bury(ada.name)
    assert (await answer(ada, seen)).gone
    assert await made(store) == []
    await work(bob)
    assert await made(store) == [run_id("s", slot)]


async def test_a_slot_seen_before_the_schedule_changed_does_not_fire(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    slot = await put(store, every())
    until(clock, slot)
    seen = [await each.exchange() for each in (ada, bob)]
    await store.put_schedule(every(7 * MINUTE), slot + 1, declared=True)
    await answer(ada, seen[0])
    await store.remove_schedule("s")
    await answer(bob, seen[1])
    assert await made(store) == []


async def test_a_schedule_put_again_does_not_fire_a_slot_again(store: Store, ada: Worker, clock: ManualClock) -> None:
    slot = await put(store, every())
    until(clock, slot)
    await work(ada)
    await store.remove_schedule("s")
    await store.put_schedule(every(), slot, declared=True)
    await work(ada)
    assert await made(store) == [run_id("s", slot)]
    assert (await only(store)).next_slot == slot + MINUTE


# --- paused


async def test_a_paused_schedule_is_not_due(store: Store, ada: Worker, clock: ManualClock) -> None:
    slot = await put(store, every())
    until(clock, slot)
    seen = await ada.exchange()
    assert (await store.pause_schedule("s")).paused
    await answer(ada, seen)
    reply = await ada.exchange()
    assert (reply.due, reply.next_at, await made(store)) == ([], None, [])
    assert not (await store.resume_schedule("s", slot)).paused
    await work(ada)
    assert await made(store) == [run_id("s", slot)]


async def test_a_schedule_may_go_on_without_what_it_missed_while_paused(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    slot = await put(store, every(missed=Missed.ALL))
    await store.pause_schedule("s")
    until(clock, slot + 10 * MINUTE + 1)
    resumed = await store.resume_schedule("s", next_slots(every(), clock.now(), 1)[0])
    assert resumed.next_slot == slot + 11 * MINUTE
    await work(ada)
    assert await made(store) == []
    await store.pause_schedule("s")
    assert (await store.resume_schedule("s", slot)).next_slot == slot + 11 * MINUTE


async def test_resuming_what_is_not_paused_takes_nothing_from_it(store: Store, ada: Worker, clock: ManualClock) -> None:
    slot = await put(store, every(missed=Missed.ALL))
    until(clock, slot + 2 * MINUTE)
    for following in (slot + 3 * MINUTE, None):
        assert (await store.resume_schedule("s", following)).next_slot == slot
    await work(ada)
    assert await made(store) == [run_id("s", slot + n * MINUTE) for n in range(3)]


async def test_a_single_slot_that_passed_during_a_pause_is_over(store: Store, ada: Worker, clock: ManualClock) -> None:
    await put(store, Schedule(name="once", at=clock.now() + 5, start=start("")))
    await store.pause_schedule("once")
    clock.advance(ms=DAY)
    resumed = await store.resume_schedule("once", None)
    assert (resumed.next_slot, resumed.paused) == (None, False)
    assert (await work(ada)).due == [] and await made(store) == []


# --- missed and overlapping


@pytest.mark.parametrize(("missed", "expected"), [(Missed.SKIP, []), (Missed.LAST, [5]), (Missed.ALL, [3, 4, 5])])
async def test_slots_that_nobody_could_fire(
    store: Store, ada: Worker, clock: ManualClock, missed: Missed, expected: Sequence[int]
) -> None:
    schedule = every(10 * MINUTE, missed=missed, missed_limit=3)
    slot = await put(store, schedule)
    until(clock, slot + 59 * MINUTE)
    await work(ada)
    assert await made(store) == [run_id("s", slot + n * 10 * MINUTE) for n in expected]
    assert (await only(store)).next_slot == slot + 60 * MINUTE


async def two_slots(store: Store, ada: Worker, clock: ManualClock, overlap: Overlap) -> tuple[RunRecord, RunRecord]:
    """The run of a slot, which is running when the next one fires, and what that one made."""
    slot = await put(store, every(overlap=overlap))
    until(clock, slot)
    await work(ada)
    await ada.claim_one()
    clock.advance(ms=MINUTE)
    await work(ada)
    first = await record(store, run_id("s", slot))
    second = await store.load(run_id("s", slot + MINUTE))
    return first, second or first


async def test_overlap_allowed(store: Store, ada: Worker, clock: ManualClock) -> None:
    first, second = await two_slots(store, ada, clock, Overlap.ALLOW)
    assert (first.state, second.state) == (State.RUNNING, State.QUEUED)


async def test_overlap_skipped(store: Store, ada: Worker, clock: ManualClock) -> None:
    first, second = await two_slots(store, ada, clock, Overlap.SKIP)
    assert first is second and first.state == State.RUNNING
    after = await only(store)
    assert after.last_run == first.id and after.next_slot is not None and after.next_slot > clock.now()
    await store.cancel(first.id, "x")
    clock.advance(ms=MINUTE)
    await work(ada)
    assert len(await made(store)) == 1, "it is asked to end, and has not"
    await store.bury(ada.name)
    bob = await worker(store)
    await bob.settle(await bob.claim_one(), To.CANCELLED)
    clock.advance(ms=MINUTE)
    await work(bob)
    assert len(await made(store)) == 2


async def test_overlap_cancelled(store: Store, ada: Worker, clock: ManualClock) -> None:
    first, second = await two_slots(store, ada, clock, Overlap.CANCEL)
    assert (first.state, second.state) == (State.RUNNING, State.QUEUED)
    assert first.cancelling == "the next run of schedule s began"
    clock.advance(ms=MINUTE)
    await work(ada)
    assert (await record(store, second.id)).state == State.CANCELLED


@pytest.mark.parametrize("end", [To.SUCCEEDED, To.FAILED, To.CANCELLED, None])
async def test_overlap_queued(store: Store, ada: Worker, bob: Worker, clock: ManualClock, end: To | None) -> None:
    """Each run begins when the one before it has ended, however it ended."""
    slot = await put(store, every(overlap=Overlap.QUEUE))
    until(clock, slot)
    await work(bob)
    claim = await ada.claim_one()
    for _ in range(2):
        clock.advance(ms=MINUTE)
        await work(bob)
    ids = [run_id("s", slot + n * MINUTE) for n in range(3)]
    assert await made(store) == ids
    assert [run.state for run in await all_runs(store)] == [State.RUNNING, State.WAITING, State.WAITING]
    assert [(wait.what, wait.target) for wait in (await record(store, ids[1])).waits] == [(WaitFor.SCHEDULE, ids[0])]
    assert await bob.claim() == []
    if end is None:
        await store.delete(ids[0], force=True)
    else:
        await ada.settle(claim, end)
    assert [claim.id for claim in await bob.claim()] == [ids[1]]
    await store.cancel(ids[2], "x")
    assert await bob.claim() == []


async def test_a_queued_run_begins_after_an_earlier_one_that_waits(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    slot = await put(store, every(overlap=Overlap.QUEUE))
    until(clock, slot)
    await work(ada)
    await ada.park(await ada.claim_one(), for_signal())
    clock.advance(ms=MINUTE)
    await work(ada)
    assert await ada.claim() == []
    await store.cancel(run_id("s", slot), "x")
    assert [claim.id for claim in await ada.claim()] == [run_id("s", slot + MINUTE)]


async def test_slots_missed_at_once_overlap_as_if_they_had_come_one_by_one(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    schedules = [every(name=str(n), missed=Missed.ALL, overlap=overlap) for n, overlap in enumerate(Overlap)]
    slot = max([await put(store, schedule) for schedule in schedules])
    until(clock, slot + 2 * MINUTE)
    reply = await work(ada)
    while reply.due:
        reply = await work(ada)
    states = {
        schedule: [run.state for run in runs]
        for schedule, runs in itertools.groupby(
            sorted(await all_runs(store), key=lambda run: run.id), key=lambda run: run.id[0]
        )
    }
    order = {str(overlap): str(n) for n, overlap in enumerate(Overlap)}
    assert states[order["allow"]] == [State.QUEUED] * 3
    assert states[order["skip"]] == [State.QUEUED]
    assert states[order["queue"]] == [State.QUEUED, State.WAITING, State.WAITING]
    assert states[order["cancel"]] == [State.CANCELLED, State.CANCELLED, State.QUEUED]


async def test_an_earlier_run_that_was_pruned_or_deleted_has_ended(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    slot = await put(store, every(overlap=Overlap.SKIP))
    until(clock, slot)
    await work(ada)
    await store.delete(run_id("s", slot), force=True)
    assert (await only(store)).last_run is None
    clock.advance(ms=MINUTE)
    await work(ada)
    assert await made(store) == [run_id("s", slot + MINUTE)]


async def test_jitter_puts_the_run_off_and_not_the_slot(store: Store, ada: Worker, clock: ManualClock) -> None:
    schedule = every(jitter=MINUTE)
    slot = await put(store, schedule)
    until(clock, slot)
    [fire] = due_fires(await only(store), clock.now())
    await work(ada)
    run = await record(store, run_id("s", slot))
    assert (run.state, run.wake_at) == (State.SCHEDULED, fire.starts[0].at)


async def test_a_slot_whose_start_has_a_unique_key_gets_the_run_that_is_there(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    slot = await put(store, replace(every(), start=start("", unique=Unique("k"))))
    until(clock, slot)
    await work(ada)
    clock.advance(ms=MINUTE)
    await work(ada)
    assert await made(store) == [run_id("s", slot)]


async def test_a_fire_without_runs_moves_the_schedule_on(store: Store, ada: Worker, clock: ManualClock) -> None:
    slot = await put(store, every())
    until(clock, slot)
    reply = await ada.exchange(fires=[Fire("s", slot, [], slot + 5), Fire("s", slot, [start("x")], slot + 9)])
    assert (reply.next_at, await made(store)) == (slot + 5, [])


async def test_a_queued_run_of_a_group_takes_its_slot_when_it_begins(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    slot = await put(store, replace(every(overlap=Overlap.QUEUE), start=start("", group="g")))
    until(clock, slot)
    await work(ada)
    first = await ada.claim_one()
    clock.advance(ms=MINUTE)
    await work(ada)
    await store.enqueue([start("other", group="g")])
    assert await ada.claim() == []
    await ada.settle(first)
    one = await ada.claim()
    assert len(one) == 1, "one at a time, whoever comes first"
    await ada.settle(one[0])
    other = await ada.claim()
    assert {one[0].id, other[0].id} == {"other", run_id("s", slot + MINUTE)}


async def test_a_run_that_waits_for_its_turn_waits_for_all_earlier_ones(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    slot = await put(store, every(overlap=Overlap.QUEUE))
    until(clock, slot)
    await work(ada)
    first = await ada.claim_one()
    for _ in range(2):
        clock.advance(ms=MINUTE)
        await work(ada)
    await store.cancel(run_id("s", slot + MINUTE), "x")
    assert await ada.claim() == []
    reply = await ada.exchange(settles=[settle(first)], slots=5)
    assert [claim.id for claim in reply.claims] == [run_id("s", slot + 2 * MINUTE)]


@pytest.mark.parametrize("overlap", list(Overlap))
async def test_runs_that_went_side_by_side_before_the_schedule_changed_overlap_too(
    store: Store, ada: Worker, clock: ManualClock, overlap: Overlap
) -> None:
    slot = await put(store, every())
    until(clock, slot)
    for _ in range(2):
        await work(ada)
        clock.advance(ms=MINUTE)
    first, second = await ada.claim()
    await put(store, every(overlap=overlap))
    await ada.settle(second)
    await work(ada)
    third = await store.load(run_id("s", slot + 2 * MINUTE))
    before = await record(store, first.id)
    expected = {Overlap.ALLOW: State.QUEUED, Overlap.CANCEL: State.QUEUED, Overlap.QUEUE: State.WAITING}
    assert (third.state if third else None) == expected.get(overlap)
    assert (before.cancelling is not None) == (overlap is Overlap.CANCEL)


async def test_a_run_that_was_retried_overlaps_again(store: Store, ada: Worker, clock: ManualClock) -> None:
    slot = await put(store, every(overlap=Overlap.SKIP))
    until(clock, slot)
    for to in (To.FAILED, To.SUCCEEDED):
        await work(ada)
        await ada.settle(await ada.claim_one(), to)
        clock.advance(ms=MINUTE)
    await store.retry(run_id("s", slot))
    await work(ada)
    assert len(await made(store)) == 2


async def test_a_worker_is_not_told_of_schedules_that_it_skips(store: Store, ada: Worker, clock: ManualClock) -> None:
    slot = max([await put(store, every(name=f"s{n:02}")) for n in range(15)])
    until(clock, slot)
    told: list[str] = []
    while due := (await ada.exchange(skips=told)).due:
        told += [record.schedule.name for record in due]
    assert sorted(told) == [f"s{n:02}" for n in range(15)]
