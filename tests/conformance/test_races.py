"""What happens at the same time: two that end a claim, a lease that ends just now, thousands that end for one."""

from __future__ import annotations

import asyncio

import pytest

from conformance.kit import (
    BILL,
    SHIP,
    URGENT,
    ManualClock,
    Worker,
    all_runs,
    checkpoint,
    for_run,
    ids,
    message,
    record,
    save,
    settle,
    start,
    worker,
)
from perdure.errors import InvalidInput
from perdure.model import Kind, Outcome, State, Unique
from perdure.stores.base import Store
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("to", [To.FAILED, To.RELEASE, To.PARK, To.CONTINUE])
async def test_of_two_exchanges_that_settle_one_claim_at_once_one_counts(store: Store, ada: Worker, to: To) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    one, two = ada.settle(claim, To.SUCCEEDED, '"1"'), ada.settle(claim, to, '"2"')
    await asyncio.gather(one, two)
    shown = await record(store, "r")
    ended = shown.state is State.SUCCEEDED and shown.body == '"1"'
    assert ended or shown.state is not State.SUCCEEDED
    counted = {count.state: count.runs for count in await store.counts() if count.runs}
    assert counted == {shown.state: 1}
    assert (await ada.exchange(saves=[save(claim, checkpoint("late"))])).refused == [claim.token]


async def test_a_settle_at_the_end_of_the_lease_counts_or_the_run_goes_on_elsewhere(
    store: Store, clock: ManualClock
) -> None:
    for n in range(20):
        late, heir = await worker(store, lease=1000), await worker(store, lease=10**9)
        await store.enqueue([start(f"r{n}")])
        claim = await late.claim_one()
        clock.advance(ms=1000)
        calls = [late.settle(claim, To.SUCCEEDED, '"late"'), store.reclaim()]
        await asyncio.gather(*(calls if n % 2 else reversed(calls)))
        shown = await record(store, f"r{n}")
        again = await heir.claim(1)
        if shown.state is State.SUCCEEDED:
            assert (shown.body, shown.attempt, again) == ('"late"', 1, [])
        else:
            assert (shown.state, shown.attempt) == (State.QUEUED, 2)
            assert (await late.settle(claim, To.SUCCEEDED, '"late"')).refused == [claim.token]
            await heir.settle(again[0], To.SUCCEEDED, '"heir"')
            assert (await record(store, f"r{n}")).body == '"heir"'


async def test_a_lease_renewed_at_its_end_is_kept_whole_or_lost_whole(store: Store, clock: ManualClock) -> None:
    for n in range(20):
        late = await worker(store, lease=1000)
        await store.enqueue([start(f"r{n}")])
        claim = await late.claim_one()
        keeper = store.keeper(late.id, 1000)
        clock.advance(ms=1000)
        kept, taken = await asyncio.gather(asyncio.to_thread(keeper.renew), store.reclaim())
        keeper.close()
        assert (kept, taken.count) in [(True, 0), (False, 1)]
        assert (await record(store, f"r{n}")).state is (State.RUNNING if kept else State.QUEUED)
        assert (await late.settle(claim)).gone is not kept
        await store.cancel(f"r{n}", "x")
        await store.retire(late.id)


async def test_a_lease_has_nothing_to_do_with_what_became_of_the_runs(store: Store, ada: Worker) -> None:
    await store.enqueue([start("ends"), start("is cancelled"), start("is deleted")])
    ends, *_ = await ada.claim()
    await ada.settle(ends)
    await store.cancel("is cancelled", "x")
    await store.delete("is deleted", force=True)
    keeper = store.keeper(ada.id, ada.lease)
    assert keeper.renew()
    keeper.close()


async def test_what_came_for_a_run_before_its_worker_died_is_brought_in_order(
    store: Store, ada: Worker, bob: Worker
) -> None:
    await store.enqueue([start("r")])
    await store.signal(message("r", body="0"))
    claim = await ada.claim_one()
    for n in (1, 2, 3):
        await store.signal(message("r", body=str(n)))
    [first] = claim.signals
    await ada.save(claim, checkpoint("got", kind=Kind.SIGNAL), consumes=first.position)
    await store.bury(ada.name)
    claim = await bob.claim_one()
    assert ([signal.body for signal in claim.signals], claim.cut_off) == (["1", "2", "3"], True)
    assert [kept.key for kept in claim.checkpoints] == ["got"]


@pytest.mark.one_partition("the order within a queue")
async def test_queues_sessions_versions_and_delays_hold_together(store: Store, clock: ManualClock) -> None:
    plain = await worker(store, queues=["default"])
    home = await worker(store, sessions=1, versions={SHIP: ["2"]})
    await store.enqueue(
        [
            start("s", session="s", delay=100),
            start("urgent", queue=URGENT),
            start("pinned", version="2", delay=50),
            start("s2", session="s", version="2"),
            start("t", session="t", priority=-1, delay=200),
            start("plain"),
        ]
    )
    assert ids(await plain.claim()) == ["plain"]
    assert sorted(ids(await home.claim())) == ["s2", "urgent"]
    clock.advance(ms=100)
    assert ids(await plain.claim()) == []
    assert ids(await home.claim()) == ["s", "pinned"]
    clock.advance(ms=100)
    assert ids(await home.claim()) == []  # it has room for one session
    await store.retire(home.id)
    other = await worker(store, sessions=2)
    assert [run for run in ids(await other.claim()) if run != "urgent"] == ["t", "s"]


async def test_two_thousand_ends_wake_one_run_that_learns_of_all(store: Store, ada: Worker) -> None:
    await store.enqueue(
        [start("parent", priority=1), *(start(f"c{n}", workflow=BILL, parent="parent") for n in range(2000))]
    )
    claims = [claim for _ in range(32) for claim in await ada.claim()]
    parent = claims.pop()
    await ada.park(parent, *(for_run(claim.id) for claim in claims))
    await ada.exchange(settles=[settle(claim, body=claim.input) for claim in claims])
    claim = await ada.claim_one()
    assert claim.id == "parent"
    told = [*claim.ended, *await store.ended(claim.unread)]
    assert sorted(end.id for end in told) == sorted(each.id for each in claims)
    assert await ada.claim() == []


async def test_an_exchange_takes_effect_whole_or_not_at_all(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r"), start("other")])
    claim, other = await ada.claim(2)
    child = start("child", unique=Unique("\0"))
    with pytest.raises(InvalidInput):
        await ada.exchange(
            slots=1,
            saves=[save(claim, checkpoint("a")), save(claim, checkpoint("b", kind=Kind.CHILD), starts=child)],
            settles=[settle(other, body="1")],
        )
    assert [run.state for run in await all_runs(store)] == [State.RUNNING, State.RUNNING]
    assert await store.history("r") == []
    await ada.exchange(saves=[save(claim, checkpoint("a", outcome=Outcome.OK))], settles=[settle(other, body="1")])
    assert (await record(store, "other")).state is State.SUCCEEDED


async def test_a_child_may_be_deleted_alone(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parent"), start("child", parent="parent"), start("grandchild", parent="child")])
    await store.cancel("child", "x")
    assert await store.delete("child") == 2
    assert ids(await ada.claim()) == ["parent"]


async def test_a_pinned_run_that_continues_stays_pinned(store: Store, ada: Worker) -> None:
    newer = await worker(store, versions={SHIP: ["2"]})
    await store.enqueue([start("r", version="2")])
    await newer.settle(await newer.claim_one(), To.CONTINUE, '"next"')
    assert await ada.claim() == []
    assert (await newer.claim_one()).version == "2"
