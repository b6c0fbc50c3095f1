"""Sessions: the runs of one go to the worker that owns it, in order, for as long as it lives and has use for it."""

from __future__ import annotations

import asyncio

import pytest

from conformance.kit import (
    BILL,
    DEFAULT,
    LEASE,
    URGENT,
    ManualClock,
    Worker,
    checkpoint,
    drain,
    for_signal,
    ids,
    message,
    of_queue,
    record,
    save,
    settle,
    start,
    worker,
)
from perdure.model import Kind, Limits, OnConflict, Unique
from perdure.stores.base import Store, Topic
from perdure.stores.exchange import Claim, To

pytestmark = pytest.mark.anyio

IDLE = 10_000


@pytest.fixture
async def ada(store: Store) -> Worker:
    """A worker that owns up to three sessions."""
    return await worker(store, name="ada", sessions=3, session_idle=IDLE)


@pytest.fixture
async def bob(store: Store) -> Worker:
    """Another one."""
    return await worker(store, name="bob", sessions=3, session_idle=IDLE)


async def fill(store: Store, *names: str, session: str = "s", **more: int) -> None:
    await store.enqueue([start(name, session=session, **more) for name in names])  # type: ignore[arg-type]


async def test_the_first_claim_makes_the_owner(store: Store, ada: Worker, bob: Worker) -> None:
    await fill(store, "a", "b", "c")
    first = await ada.claim_one()
    assert (first.id, first.session) == ("a", "s")
    reply = await bob.exchange(slots=5)
    assert (reply.claims, reply.more) == ([], False)
    assert (await record(store, "b")).held == "session s belongs to worker ada"
    await ada.settle(first)
    assert await bob.claim() == []
    assert ids(await ada.claim()) == ["b", "c"]


async def test_all_lanes_of_a_session_are_its_owners_at_once(store: Store, ada: Worker) -> None:
    await store.enqueue(
        [
            start("first", session="s", priority=-1),
            start("second", session="s", workflow=BILL),
            start("third", priority=1),
            start("fourth", workflow=BILL, priority=2),
        ]
    )
    assert ids(await ada.claim()) == ["first", "second", "third", "fourth"]


async def test_a_run_that_is_put_off_comes_back_in_order(store: Store, ada: Worker, clock: ManualClock) -> None:
    """It came last of very many, and comes before those that came since."""
    await fill(store, *(f"early {n}" for n in range(70)))
    unique = Unique("k", OnConflict.REPLACE)
    await store.enqueue([start("late", session="s", unique=unique)])
    await store.enqueue([start("again", session="s", unique=unique, delay=1_000)])
    for n in range(70):
        await store.cancel(f"early {n}", "x")
    await fill(store, *(f"new {n}" for n in range(70)))
    clock.advance(ms=1_000)
    assert ids(await ada.claim(2)) == ["late", "new 0"]


async def test_each_worker_has_its_own_sessions(store: Store, ada: Worker, bob: Worker) -> None:
    await fill(store, "a1", session="s1")
    await fill(store, "b1", session="s2")
    assert (ids(await ada.claim(1)), ids(await bob.claim(1))) == (["a1"], ["b1"])
    await fill(store, "a2", session="s1")
    await fill(store, "b2", session="s2")
    assert (ids(await bob.claim()), ids(await ada.claim())) == (["b2"], ["a2"])


async def test_a_session_lies_in_its_queue(store: Store, ada: Worker, bob: Worker) -> None:
    await fill(store, "a")
    await store.enqueue([start("b", session="s", queue=URGENT)])
    assert len(await ada.claim(1)) == len(await bob.claim()) == 1


async def test_a_worker_without_sessions_claims_of_none(store: Store, ada: Worker) -> None:
    plain = await worker(store)
    await fill(store, "a")
    await store.enqueue([start("b")])
    reply = await plain.exchange(slots=5)
    assert (ids(reply.claims), reply.more) == (["b"], False)


@pytest.mark.one_partition("the order within a queue")
async def test_runs_of_sessions_and_others_keep_their_order(store: Store, ada: Worker) -> None:
    await fill(store, "a", session="s1")
    await store.enqueue([start("b")])
    await fill(store, "c", session="s2")
    await fill(store, "d", session="s1", priority=-1)
    assert ids(await ada.claim()) == ["d", "a", "b", "c"]


@pytest.mark.one_partition("the order within a queue")
async def test_no_more_sessions_than_the_worker_wants(store: Store, ada: Worker, bob: Worker) -> None:
    for n in range(5):
        await fill(store, f"a{n}", f"b{n}", session=f"s{n}")
    reply = await ada.exchange(slots=60)
    assert ids(reply.claims) == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert not reply.more
    assert ids(await bob.claim()) == ["a3", "b3", "a4", "b4"]


async def test_sessions_that_it_may_not_own_hold_up_no_other_run(store: Store) -> None:
    one = await worker(store, sessions=1)
    for n in range(200):
        await fill(store, f"r{n}", session=f"s{n}")
    await store.enqueue([start("plain")])
    await fill(store, "again", session="s0")
    assert ids(await drain(one)) == ["r0", "plain", "again"]


async def test_a_renewed_lease_keeps_the_session(store: Store, ada: Worker, bob: Worker, clock: ManualClock) -> None:
    await fill(store, "a", "b")
    await ada.claim_one()
    for _ in range(3):
        clock.advance(ms=LEASE - 1)
        for each in (ada, bob):
            each.renew()
        await store.reclaim()
        assert await bob.claim() == []
    assert ids(await ada.claim()) == ["b"]


async def test_when_the_owner_dies_its_runs_go_elsewhere_in_order(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    await fill(store, "a", "b", "c")
    await ada.claim(2)
    clock.advance(ms=LEASE)
    bob.renew()
    assert (await store.reclaim()).count == 2
    claims = await bob.claim()
    assert [(claim.id, claim.attempt) for claim in claims] == [("a", 2), ("b", 2), ("c", 1)]


async def test_an_owner_that_is_buried_owns_nothing(store: Store, ada: Worker, bob: Worker) -> None:
    await fill(store, "a", "b")
    await ada.settle(await ada.claim_one())
    assert await store.bury("ada") == 0
    assert ids(await bob.claim()) == ["b"]


async def test_an_owner_that_retires_gives_its_sessions_up(store: Store, ada: Worker, bob: Worker) -> None:
    await fill(store, "a", "b")
    await ada.claim_one()
    await store.retire(ada.id)
    assert [(claim.id, claim.attempt) for claim in await bob.claim()] == [("a", 1), ("b", 1)]


async def test_a_session_without_runs_is_kept_for_a_while(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    await fill(store, "a")
    await ada.settle(await ada.claim_one())
    clock.advance(ms=IDLE - 1)
    await fill(store, "b")
    assert await bob.claim() == []
    claim = await ada.claim_one()
    assert claim.id == "b"
    await ada.settle(claim)
    clock.advance(ms=IDLE)
    await bob.exchange()
    await fill(store, "c")
    assert ids(await bob.claim()) == ["c"]
    assert await ada.claim() == []


async def test_a_session_that_waits_is_idle_and_may_wake_elsewhere(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    await fill(store, "a")
    await ada.park(await ada.claim_one(), for_signal())
    clock.advance(ms=IDLE)
    await bob.exchange()
    await store.signal(message("a"))
    assert ids(await bob.claim()) == ["a"]


async def test_a_session_with_a_run_is_not_idle(store: Store, ada: Worker, bob: Worker, clock: ManualClock) -> None:
    await fill(store, "a")
    await ada.claim_one()
    clock.advance(ms=IDLE)
    await bob.exchange(slots=1)
    await fill(store, "b")
    assert await bob.claim() == []
    assert ids(await ada.claim()) == ["b"]


async def test_an_idle_session_makes_room_for_another(store: Store, clock: ManualClock) -> None:
    one = await worker(store, sessions=1, session_idle=IDLE)
    await fill(store, "a", session="s1")
    await one.settle(await one.claim_one())
    await fill(store, "b", session="s2")
    reply = await one.exchange(slots=1)
    assert (reply.claims, reply.more, reply.next_at) == ([], False, clock.now() + IDLE)
    clock.advance(ms=IDLE)
    assert ids(await one.claim()) == ["b"]


async def test_only_some_of_many_runs_are_ready_at_a_time(store: Store, ada: Worker) -> None:
    await fill(store, *[f"r{n}" for n in range(200)])
    assert (await record(store, "r150")).held == "its session waits: 64 runs of session s come first"
    assert ids(await drain(ada)) == [f"r{n}" for n in range(200)]


async def test_priorities_hold_across_all_runs_of_a_session(store: Store, ada: Worker) -> None:
    await fill(store, *[f"r{n}" for n in range(100)])
    await fill(store, "first", priority=-1)
    assert ids(await ada.claim(2)) == ["first", "r0"]
    await fill(store, "last", priority=1)
    assert ids(await drain(ada)) == [*[f"r{n}" for n in range(1, 100)], "last"]


async def test_a_cancelled_run_makes_room_for_the_next_of_its_session(store: Store, ada: Worker) -> None:
    await fill(store, *[f"r{n}" for n in range(70)])
    await store.cancel("r0", "x")
    await store.cancel("r69", "x")
    assert (await record(store, "r64")).held is None
    assert ids(await drain(ada)) == [f"r{n}" for n in range(1, 69)]


@pytest.mark.parametrize(("to", "attempt"), [(To.RELEASE, 1), (To.RETRY, 2)])
async def test_what_is_handed_back_stays_with_its_owner(
    store: Store, ada: Worker, bob: Worker, to: To, attempt: int
) -> None:
    await fill(store, "a")
    await ada.settle(await ada.claim_one(), to)
    assert await bob.claim() == []
    assert [(claim.id, claim.attempt) for claim in await ada.claim()] == [("a", attempt)]


async def test_a_repeated_claim_owns_no_more(store: Store, ada: Worker, bob: Worker) -> None:
    await fill(store, "a", "b")
    first = await ada.claim(1)
    assert ids((await ada.repeat()).claims) == ids(first)
    assert await bob.claim() == []


async def test_two_that_claim_at_once_share_no_session(store: Store, ada: Worker, bob: Worker) -> None:
    for n in range(6):
        await fill(store, f"a{n}", f"b{n}", session=f"s{n}")
    replies = await asyncio.gather(*[each.claim(2) for each in (ada, bob) * 3])
    claims = [claim for reply in replies for claim in reply]
    # What another one was just taking is passed over, and may be left.
    claims += [*await ada.claim(12), *await bob.claim(12)]
    owners: dict[str, set[int]] = {}
    for claim in claims:
        owners.setdefault(claim.session, set()).add(claim.token >> 40)
    assert len(claims) == 12
    assert len(owners) == 6
    assert all(len(each) == 1 for each in owners.values())


@pytest.mark.one_partition("a run with a group and a session that lie apart")
async def test_sessions_groups_and_limits_hold_together(store: Store, ada: Worker, bob: Worker) -> None:
    await store.set_limits(of_queue(), Limits(running=3), "ada")
    starts = [start(f"r{n}", session=f"s{n % 2}", group=f"g{n % 3}", priority=n % 2) for n in range(12)]
    await store.enqueue(starts)
    began: list[str] = []
    owners: dict[str, set[int]] = {}
    while claims := [*await ada.claim(), *await bob.claim()]:
        assert len(claims) <= 3
        assert len({claim.group for claim in claims}) == len(claims)
        for claim in claims:
            began.append(claim.id)
            owners.setdefault(claim.session, set()).add(claim.token >> 40)
            await (ada if claim.token >> 40 == ada.id else bob).settle(claim)
    assert len(set(began)) == 12
    assert all(len(each) == 1 for each in owners.values())
    for n in range(3):
        mine = [each for each in began if int(each[1:]) % 3 == n]
        assert mine == sorted(mine, key=lambda each: (int(each[1:]) % 2, int(each[1:])))


async def test_a_delayed_run_goes_to_the_owner_when_it_is_due(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    await fill(store, "now")
    await fill(store, "later", delay=100)
    await ada.claim_one()
    clock.advance(ms=100)
    assert await bob.claim() == []
    assert ids(await ada.claim()) == ["later"]


async def test_a_late_settle_changes_nothing_of_the_session(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    await fill(store, "a")
    late = await ada.claim_one()
    await store.bury("ada")
    assert ids(await bob.claim()) == ["a"]
    reply = await bob.exchange(settles=[settle(late)])
    assert reply.refused == [late.token]
    await fill(store, "b")
    assert ids(await bob.claim()) == ["b"]
    assert (await record(store, "b")).queue == DEFAULT


async def test_workers_say_how_many_sessions_they_own(store: Store) -> None:
    one = await worker(store, sessions=2)
    await store.enqueue([start(session="s"), start("t", session="t"), start("u", session="u")])
    assert len(await one.claim()) == 2
    [shown] = await store.workers()
    assert (shown.sessions, shown.owned_sessions) == (2, 2)
    assert (await record(store, "u")).held is None


async def test_a_worker_that_drains_gives_up_its_sessions_as_their_last_runs_end(
    store: Store, ada: Worker, bob: Worker
) -> None:
    for session in ("s", "t", "u"):
        await fill(store, f"{session}1", f"{session}2", session=session)
    s1 = await ada.claim_one()
    [t1] = await drain_of(ada, "t")
    [u1] = await drain_of(ada, "u")
    await ada.settle(t1)
    await ada.park(u1, for_signal())
    assert await bob.claim() == []
    assert (await ada.exchange(draining=True)).claims == []
    assert ids(await bob.claim()) == ["t2", "u2"]
    await ada.exchange(settles=[settle(s1)], draining=True)
    assert ids(await bob.claim()) == ["s2"]
    await store.signal(message("u1"))
    assert ids(await bob.claim()) == ["u1"]


async def test_the_others_are_woken_when_a_worker_that_drains_gives_up_a_session(
    store: Store, ada: Worker, bob: Worker
) -> None:
    await fill(store, "a", "b")
    await ada.settle(await ada.claim_one())
    woken = asyncio.Event()
    subscription = await store.subscribe(Topic.WORK, woken.set)
    await ada.exchange(draining=True)
    await asyncio.wait_for(woken.wait(), 5)
    await subscription.close()


async def drain_of(worker: Worker, session: str) -> list[Claim]:
    """Claims the first ready run of a session; what else comes is handed back."""
    claims = await worker.claim()
    wanted = [claim for claim in claims if claim.session == session][:1]
    await worker.exchange(settles=[settle(claim, To.RELEASE) for claim in claims if claim not in wanted])
    return wanted


@pytest.mark.one_partition("the child may lie elsewhere than its parent")
@pytest.mark.parametrize("slots", [0, 5])
async def test_the_first_session_that_there_is_may_be_of_a_child(store: Store, ada: Worker, slots: int) -> None:
    await store.enqueue([start("parent")])
    parent = await ada.claim_one()
    child = start("child", session="s", parent="parent")
    reply = await ada.exchange(saves=[save(parent, checkpoint("c", kind=Kind.CHILD), starts=child)], slots=slots)
    assert (ids(reply.claims), reply.more) == ((["child"], False) if slots else ([], True))
