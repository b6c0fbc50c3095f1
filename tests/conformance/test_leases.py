"""Leases: an incarnation owns its runs while it renews, and another worker carries on with them afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from conformance.kit import (
    LEASE,
    SHIP,
    ManualClock,
    Worker,
    checkpoint,
    for_signal,
    for_timer,
    ids,
    message,
    record,
    save,
    settle,
    start,
    watch,
    worker,
)
from perdure.clock import moment
from perdure.explain import reason_of
from perdure.model import Outcome, RunQuery, State
from perdure.stores.base import Keeper, Reclaimed, Store
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio


@pytest.fixture
def keeper(store: Store, ada: Worker) -> Iterator[Keeper]:
    """Keeps the lease of ada."""
    with closing(store.keeper(ada.id, ada.lease)) as keeper:
        yield keeper


async def renew(keeper: Keeper) -> bool:
    return await asyncio.to_thread(keeper.renew)


async def test_every_incarnation_has_an_id_of_its_own(store: Store, clock: ManualClock) -> None:
    seen: set[int] = set()
    for _ in range(5):
        served = await worker(store)
        assert served.id > 0 and served.id not in seen
        seen.add(served.id)
        await store.retire(served.id)
    clock.advance(ms=LEASE)
    await store.reclaim()
    assert (await worker(store)).id not in seen


async def test_a_lease_is_lost_at_its_end_and_not_before(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("r")])
    stale = await ada.claim_one()
    clock.advance(ms=LEASE - 1)
    assert (await store.reclaim()).count == 0
    assert (await ada.exchange()).gone is False
    clock.advance(ms=1)
    assert (await store.reclaim()).count == 1
    run = await record(store, "r")
    assert (run.state, run.worker, run.attempt, run.crashes) == (State.QUEUED, None, 2, 1)
    newcomer = await worker(store)
    claim = await newcomer.claim_one()
    assert (claim.id, claim.attempt, claim.crashes, claim.cut_off) == ("r", 2, 1, True)
    assert claim.token != stale.token


async def test_a_run_that_is_not_taken_over_yet_shows_that_its_workers_lease_has_ended(
    store: Store, ada: Worker, keeper: Keeper, clock: ManualClock
) -> None:
    await store.enqueue([start("r")])
    assert (await record(store, "r")).lease_until is None
    await ada.claim_one()
    clock.advance(ms=LEASE - 1)
    assert await renew(keeper)
    ends = clock.now() + LEASE
    assert [run.lease_until for run in (await record(store, "r"), *await store.runs(RunQuery()))] == [ends, ends]
    assert await reason_of(store, await record(store, "r")) == f"runs on worker {ada.name}, attempt 1"
    clock.advance(ms=LEASE)
    assert await reason_of(store, await record(store, "r")) == (
        f"ran on worker {ada.name}, attempt 1, until that one's lease ended at"
        f" {moment(ends):%Y-%m-%d %H:%M:%S} UTC: any live worker takes it over; no live worker serves workflow {SHIP}:"
        " start one with `perdure worker MODULE:APP`"
    )
    await store.reclaim()
    assert (await record(store, "r")).lease_until is None


async def test_what_a_crash_cut_off_is_told_until_something_is_kept(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    await store.bury(ada.name)
    claim = await bob.claim_one()
    await bob.settle(claim, To.RELEASE)
    assert (await bob.claim_one()).cut_off
    await store.retire(bob.id)
    last = await worker(store)
    claim = await last.claim_one()
    assert (claim.cut_off, claim.attempt, claim.crashes) == (True, 2, 1)
    await last.save(claim, checkpoint("step", outcome=Outcome.OPEN))
    await last.settle(claim, To.RELEASE)
    claim = await last.claim_one()
    assert (claim.cut_off, claim.crashes) == (False, 1)


@pytest.mark.parametrize("to", [To.PARK, To.RETRY, To.CONTINUE])
async def test_what_a_crash_cut_off_is_behind_a_run_that_goes_on(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock, to: To
) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    await store.bury(ada.name)
    await bob.settle(await bob.claim_one(), to, "1", waits=[for_timer(clock.now())])
    assert not (await bob.claim_one()).cut_off


async def test_a_run_that_is_being_cancelled_is_handed_back_with_what_a_crash_cut_off(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    await store.bury(ada.name)
    claim = await bob.claim_one()
    await store.cancel("r", "not wanted")
    await bob.settle(claim, To.PARK, waits=[for_timer(clock.now())])
    assert (await bob.claim_one()).cut_off


async def test_reclaiming_again_finds_nothing(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start(), start()])
    await ada.claim()
    clock.advance(ms=LEASE)
    assert [(await store.reclaim()).count for _ in range(2)] == [2, 0]


async def test_a_renewed_lease_is_kept(store: Store, ada: Worker, keeper: Keeper, clock: ManualClock) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    for _ in range(5):
        clock.advance(ms=LEASE - 1)
        assert await renew(keeper)
        assert (await store.reclaim()).count == 0
    assert (await ada.settle(claim, body="1")).refused == []


async def test_a_lease_counts_from_its_renewal(store: Store, ada: Worker, keeper: Keeper, clock: ManualClock) -> None:
    await store.enqueue([start()])
    await ada.claim_one()
    clock.advance(ms=LEASE // 2)
    assert await renew(keeper)
    assert [live.lease_until for live in await store.workers()] == [clock.now() + LEASE]
    clock.advance(ms=LEASE - 1)
    assert (await store.reclaim()).count == 0
    clock.advance(ms=1)
    assert (await store.reclaim()).count == 1


async def test_a_lease_that_ran_out_is_renewed_while_nobody_reclaimed(
    store: Store, ada: Worker, keeper: Keeper, clock: ManualClock
) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    clock.advance(ms=10 * LEASE)
    assert await renew(keeper)
    assert (await store.reclaim()).count == 0
    assert (await ada.settle(claim, body="1")).refused == []


async def test_a_late_worker_may_write_while_nobody_reclaimed(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    clock.advance(ms=10 * LEASE)
    reply = await ada.exchange(saves=[save(claim, checkpoint("k"))], settles=[settle(claim, body="1")])
    assert (reply.refused, reply.gone) == ([], False)
    assert (await record(store, "r")).state == State.SUCCEEDED


async def test_a_reclaimed_worker_can_not_renew(store: Store, ada: Worker, keeper: Keeper, clock: ManualClock) -> None:
    clock.advance(ms=LEASE)
    await store.reclaim()
    assert await renew(keeper) is False
    assert await renew(keeper) is False


async def test_a_reclaimed_worker_is_gone_and_writes_nothing(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r"), start("s")])
    stale = await ada.claim_one()
    clock.advance(ms=LEASE)
    await store.reclaim()
    reply = await ada.exchange(
        saves=[save(stale, checkpoint("k"), starts=start("child"))],
        settles=[settle(stale, body="1")],
        watches=[watch(stale, for_signal())],
        slots=5,
    )
    assert (reply.gone, reply.claims, reply.seen, reply.cancelled) == (True, [], [], [])
    run = await record(store, "r")
    assert (run.state, run.body) == (State.QUEUED, None)
    assert await store.history("r") == []
    assert await store.load("child") is None


async def test_a_late_write_does_not_disturb_the_new_owner(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    stale = await ada.claim_one()
    await store.bury(ada.name)
    claim = await bob.claim_one()
    for to in To:
        await ada.exchange(saves=[save(stale, checkpoint(to))], settles=[settle(stale, to, '"stale"')])
    assert await store.history("r") == []
    assert (await record(store, "r")).worker == bob.name
    assert (await bob.settle(claim, body="1")).refused == []


async def test_a_look_for_dead_workers_tells_when_the_next_lease_ends(store: Store, clock: ManualClock) -> None:
    assert (await store.reclaim()).next_at is None
    first, second = await worker(store, lease=1_000), await worker(store, lease=5_000)
    began = clock.now()
    assert (await store.reclaim()).next_at == began + 1_000
    clock.advance(ms=600)
    with closing(store.keeper(first.id, first.lease)) as keeper:
        assert await renew(keeper)
    assert (await store.reclaim()).next_at == began + 1_600
    await store.enqueue([start("r")])
    await first.claim_one()
    clock.advance(ms=1_000)
    assert await store.reclaim() == Reclaimed(1, began + 5_000)
    await store.retire(second.id)
    assert await store.reclaim() == Reclaimed(0, None)


async def test_a_look_that_the_store_comes_to_late_takes_nothing(
    store: Store, ada: Worker, bob: Worker, keeper: Keeper, clock: ManualClock
) -> None:
    """It hung: those who live have had no time to renew."""
    await store.enqueue([start("hers"), start("his")])
    await ada.claim(1)
    await bob.claim(1)
    asked = clock.now() + LEASE
    clock.advance(ms=LEASE + 500)
    found = await store.reclaim(asked)
    assert (found.count, found.late) == (0, True)
    assert await renew(keeper)
    found = await store.reclaim(asked + 1)
    assert (found.count, found.late, found.next_at) == (1, False, clock.now() + LEASE)
    assert [live.id for live in await store.workers()] == [ada.id]


async def test_a_store_whose_clock_was_put_back_comes_to_nothing_late(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    clock.advance(ms=LEASE)
    assert await store.reclaim(clock.now() + 3_600_000) == Reclaimed(1, None)


async def test_what_takes_long_to_be_taken_back_is_not_late(store: Store, clock: ManualClock) -> None:
    for _ in range(50):  # more than are taken back at once
        await store.enqueue([start()])
        await (await worker(store)).claim(1)
    clock.advance(ms=LEASE)
    clock.each_look = 100
    found = await store.reclaim(clock.now())
    assert (found.count, found.late) == (50, False)


async def test_only_the_runs_of_the_dead_are_taken(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("hers"), start("theirs")])
    await ada.claim_one()
    clock.advance(ms=LEASE - 1)
    late = await worker(store)
    claim = await late.claim_one()
    clock.advance(ms=1)
    assert (await store.reclaim()).count == 1
    assert (await late.settle(claim, body="1")).refused == []
    assert [live.id for live in await store.workers()] == [late.id]


async def test_what_a_dead_worker_does_not_own_stays(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("done"), start("parked"), start("later"), start("new")])
    done, parked, later = await ada.claim(3)
    await ada.exchange(
        settles=[
            settle(done, body="1"),
            settle(parked, To.PARK, waits=[for_signal()]),
            settle(later, To.RETRY, "0", delay=10 * LEASE),
        ]
    )
    before = [await record(store, run_id) for run_id in ("done", "parked", "later", "new")]
    clock.advance(ms=LEASE)
    assert (await store.reclaim()).count == 0
    assert [await record(store, run_id) for run_id in ("done", "parked", "later", "new")] == before


async def test_what_was_saved_before_the_crash_is_there_after_it(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    await store.signal(message("r", body="1"))
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("good"), checkpoint("bad", outcome=Outcome.ERROR))
    await ada.save(claim, checkpoint("step", outcome=Outcome.OPEN, attempts=2))
    await store.bury(ada.name)
    again = await bob.claim_one()
    assert [(kept.key, kept.attempts) for kept in again.checkpoints] == [("good", 1), ("bad", 1), ("step", 2)]
    assert [arrived.body for arrived in again.signals] == ["1"]


async def test_a_supervisor_buries_a_worker_before_its_lease_ends(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r"), start("s")])
    await ada.claim(2)
    assert await store.bury(ada.name) == 2
    assert (await ada.exchange()).gone
    claims = await bob.claim()
    assert [(claim.id, claim.cut_off, claim.crashes) for claim in claims] == [("r", True, 1), ("s", True, 1)]
    assert await store.bury(ada.name) == 0
    assert (await bob.settle(claims[0], body="1")).refused == []


async def test_burying_who_was_never_there_is_fine(store: Store, ada: Worker) -> None:
    assert await store.bury("nobody") == 0
    assert (await ada.exchange()).gone is False


async def test_a_retired_worker_hands_back_without_counting(
    store: Store, ada: Worker, bob: Worker, keeper: Keeper
) -> None:
    await store.enqueue([start("r"), start("s")])
    stale, _ = await ada.claim(2)
    await store.retire(ada.id)
    assert (await record(store, "r")).state == State.QUEUED
    assert [(claim.id, claim.attempt, claim.crashes, claim.cut_off) for claim in await bob.claim()] == [
        ("r", 1, 0, False),
        ("s", 1, 0, False),
    ]
    assert await renew(keeper) is False
    reply = await ada.exchange(settles=[settle(stale, body="1")], slots=1)
    assert (reply.gone, reply.claims) == (True, [])
    await store.retire(ada.id)
    assert [live.id for live in await store.workers()] == [bob.id]
    assert (await record(store, "r")).state == State.RUNNING


async def test_a_run_that_a_retired_worker_hands_back_has_its_checkpoints(
    store: Store, ada: Worker, bob: Worker
) -> None:
    await store.enqueue([start("r")])
    (claim,) = await ada.claim()
    await ada.exchange(saves=[save(claim, checkpoint("step"))])
    await store.retire(ada.id)
    (again,) = await bob.claim()
    assert [kept.key for kept in again.checkpoints] == ["step"]


async def test_a_worker_that_starts_again_under_its_name_is_another_incarnation(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    await store.bury(ada.name)
    again = await worker(store, name=ada.name)
    assert again.id != ada.id
    claim = await again.claim_one()
    assert (await ada.exchange()).gone
    assert (await again.settle(claim, body="1")).refused == []


@pytest.mark.one_partition("the order within a queue")
async def test_a_reclaimed_run_keeps_its_place(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("low", priority=5), start("first"), start("second")])
    assert ids(await ada.claim(1)) == ["first"]
    await store.enqueue([start("third"), start("urgent", priority=-1)])
    await store.bury(ada.name)
    assert ids(await bob.claim()) == ["urgent", "first", "second", "third", "low"]


@pytest.mark.one_partition("the order within a queue")
async def test_fresh_work_does_not_starve_what_was_reclaimed(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start(f"old{n}") for n in range(5)])
    await ada.claim(5)
    await store.enqueue([start() for _ in range(500)])
    await store.bury(ada.name)
    assert ids(await bob.claim(5)) == [f"old{n}" for n in range(5)]


@pytest.mark.one_partition("the order within a queue")
async def test_what_was_reclaimed_does_not_starve_fresh_work(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start(priority=1) for _ in range(60)])
    await ada.claim()
    await store.enqueue([start("fresh")])
    await store.bury(ada.name)
    assert ids(await bob.claim(1)) == ["fresh"]


async def test_many_dead_workers_are_found_in_one_call(store: Store, clock: ManualClock) -> None:
    await store.enqueue([start() for _ in range(400)])
    for _ in range(8):
        await (await worker(store)).claim(50)
    clock.advance(ms=LEASE)
    assert (await store.reclaim()).count == 400
    assert await store.workers() == []
    survivor = await worker(store)
    claimed: list[str] = []
    while batch := await survivor.claim():
        claimed += ids(batch)
    assert len(set(claimed)) == len(claimed) == 400


async def test_of_many_who_reclaim_at_once_one_takes_each_run(store: Store, other: Store, clock: ManualClock) -> None:
    await store.enqueue([start(f"r{n}") for n in range(50)])
    await (await worker(store)).claim(50)
    clock.advance(ms=LEASE)
    found = await asyncio.gather(*(each.reclaim() for each in (store, other) * 5))
    assert sum(each.count for each in found) == 50
    assert {(await record(store, f"r{n}")).attempt for n in range(50)} == {2}


async def test_a_keeper_renews_from_another_process(
    store: Store, other: Store, ada: Worker, clock: ManualClock
) -> None:
    with closing(other.keeper(ada.id, ada.lease)) as keeper:
        clock.advance(ms=LEASE - 1)
        assert await renew(keeper)
        clock.advance(ms=LEASE - 1)
        assert (await store.reclaim()).count == 0
        await store.bury(ada.name)
        assert await renew(keeper) is False


async def test_a_keeper_renews_while_the_event_loop_is_blocked(
    store: Store, ada: Worker, keeper: Keeper, clock: ManualClock
) -> None:
    clock.advance(ms=LEASE - 1)
    assert keeper.renew()
    clock.advance(ms=LEASE - 1)
    assert (await store.reclaim()).count == 0
