"""Runs that are spread over the partitions of a cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from conformance.kit import (
    DAY,
    LEASE,
    ManualClock,
    Worker,
    checkpoint,
    for_run,
    message,
    of_group,
    of_queue,
    record,
    save,
    settle,
    start,
    watch,
    with_token,
    worker,
)
from perdure.errors import IdConflict, InvalidInput, RunNotFound, StoreError, StoreUnavailable, StoreUrlError
from perdure.model import Fire, Limits, Rate, Retention, RunQuery, Schedule, Started, State, Unique
from perdure.stores import open_store
from perdure.stores.base import Topic
from perdure.stores.exchange import Claim, Existed, To
from perdure.stores.redis import ClusterStore
from perdure.stores.redis import limits as single
from perdure.stores.redis.cluster import waits
from perdure.stores.redis.cluster.waits import PUT_OFF
from perdure.stores.redis.route import slot
from perdure.stores.redis.session import Session
from perdure.stores.redis.url import parse_url
from servers.redis import cluster_url, redis_url, shared_cluster

PARTITIONS = 8
PATIENCE = 20

MakeStore: TypeAlias = Callable[[], Awaitable[ClusterStore]]

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return cluster_url(request.node.nodeid, PARTITIONS)


@pytest.fixture
async def make_store(url: str, clock: ManualClock) -> AsyncIterator[MakeStore]:
    opened: list[ClusterStore] = []

    async def make() -> ClusterStore:
        store = open_store(url, now=clock.now)
        assert isinstance(store, ClusterStore)
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def store(make_store: MakeStore) -> ClusterStore:
    return await make_store()


@pytest.fixture
async def ada(store: ClusterStore) -> Worker:
    return await worker(store)


@pytest.fixture
async def bob(store: ClusterStore) -> Worker:
    return await worker(store)


def partition(claim: Claim) -> int:
    return int(str(claim.ref).partition(":")[0])


async def everything(one: Worker) -> list[Claim]:
    """All that is ready, claimed."""
    claims: list[Claim] = []
    while got := await one.claim():
        claims += got
    return claims


def apart(store: ClusterStore, *names: str) -> list[str]:
    """The first names, of those made of these and a number, that lie in partitions different from each other's."""
    found: dict[int, str] = {}
    for name in names:
        n = 0
        while (home := store._parts.home(f"{name}{n}")) in found:
            n += 1
        found[home] = f"{name}{n}"
    return [*found.values()]


# --- where runs are


async def test_runs_are_spread_and_each_is_found_and_claimed_once(
    store: ClusterStore, ada: Worker, bob: Worker
) -> None:
    made = await store.enqueue([start(f"r{n}", input=str(n)) for n in range(200)])
    assert made == [Started(f"r{n}", False, True) for n in range(200)]
    claims = [claim for batch in await asyncio.gather(everything(ada), everything(bob)) for claim in batch]
    assert sorted(claim.id for claim in claims) == sorted(f"r{n}" for n in range(200))
    assert len({claim.token for claim in claims}) == 200
    assert {partition(claim) for claim in claims} == {*range(PARTITIONS)}
    for claim in claims:
        assert (await record(store, claim.id)).input == claim.input


async def test_no_more_is_claimed_than_there_are_slots(store: ClusterStore, ada: Worker) -> None:
    await store.enqueue([start() for _ in range(100)])
    for slots in (1, 3, 7, 8, 20, 50):
        reply = await ada.exchange(slots=slots)
        assert (len(reply.claims), reply.more) == (slots, True) or slots == 50
    assert len(reply.claims) + 1 + 3 + 7 + 8 + 20 + len(await everything(ada)) == 100


async def test_a_lost_reply_is_found_again_in_all_partitions(store: ClusterStore, ada: Worker) -> None:
    await store.enqueue([start(f"r{n}") for n in range(60)])
    first = await ada.exchange(slots=20)
    again = await ada.repeat()
    assert sorted(claim.id for claim in again.claims) == sorted(claim.id for claim in first.claims)
    assert {claim.token for claim in again.claims} == {claim.token for claim in first.claims}
    assert len(await everything(ada)) == 40


async def test_one_id_is_one_run_whatever_groups_its_starts_name(store: ClusterStore, make_store: MakeStore) -> None:
    one, other = apart(store, "g", "g")
    elsewhere = await make_store()
    answers = await asyncio.gather(
        *(each.enqueue([start("r", group=group)]) for each in (store, elsewhere) for group in (one, other) * 5)
    )
    assert Counter(answer.existed for [answer] in answers) == {True: 19, False: 1}
    assert [run.id for run in await store.runs(RunQuery())] == ["r"]
    assert await store.enqueue([start("r", input="2")]) == [Started("r", True, False)]
    assert await store.enqueue([start("x", group=one), start("x", group=other), start("x")]) == [
        Started("x", False, True),
        Started("x", True, True),
        Started("x", True, True),
    ]


async def test_a_start_that_died_in_between_is_completed_by_any_other(store: ClusterStore, ada: Worker) -> None:
    one, other = apart(store, "g", "g")
    # The entry was made, and then its process ended.
    place = (await store._places.claim([("r", store._parts.home(one), None)]))["r"]
    assert place
    assert await store.load("r") is None
    assert await store.enqueue([start("r", group=other)]) == [Started("r", False, True)]
    # What the dead one had sent yet makes no second run.
    assert await store.enqueue([start("r", group=one)]) == [Started("r", True, True)]
    [claim] = await everything(ada)
    assert partition(claim) == store._parts.home(other)


async def test_an_id_can_be_used_again_elsewhere_when_its_run_is_gone(
    store: ClusterStore, make_store: MakeStore
) -> None:
    one, other = apart(store, "g", "g")
    elsewhere = await make_store()
    for group in (one, other, "", one):
        assert await store.enqueue([start("r", group=group)]) == [Started("r", False, True)]
        assert (await record(elsewhere, "r")).group == group
        assert await store.delete("r", force=True) == 1
        assert await elsewhere.load("r") is None
        with pytest.raises(RunNotFound):
            await elsewhere.signal(message("r"))


async def test_ties_that_lie_apart_are_refused_and_braces_bring_them_together(store: ClusterStore, ada: Worker) -> None:
    one, other = apart(store, "g", "k")
    with pytest.raises(InvalidInput, match="its group and its unique key lie in different partitions"):
        await store.enqueue([start("r", group=one, unique=Unique(other))])
    made = start("{c3}r", group="g{c3}", unique=Unique("k{c3}"), session="{c3}")
    assert await store.enqueue([made]) == [Started("{c3}r", False, True)]


async def test_where_a_partition_is_full_clients_start_nothing_and_runs_do(
    store: ClusterStore, make_store: MakeStore, ada: Worker, clock: ManualClock, url: str
) -> None:
    """A child lies with its parent, and its place is kept at the home of its id, which is full."""
    parent, child, there = apart(store, "p", "c", "t")
    await store.enqueue([start(parent), start(there)])
    claims = {claim.id: claim for claim in await everything(ada)}
    full = shared_cluster().owner(parse_url(url).prefixes[store._parts.home(child)])
    full.run("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="is full"):
            await store.enqueue([start(child)])
        with pytest.raises(StoreUnavailable, match="is full"):
            await store.enqueue([start(child, group=parent)])
        reply = await ada.save(claims[parent], checkpoint("a"), starts=start(child))
        assert (reply.existed, reply.refused) == ([], [])
        reply = await ada.save(claims[there], checkpoint("a"), starts=start(child))
        assert [(each.id, each.same) for each in reply.existed] == [(child, True)]
        bob = await worker(await make_store())
        clock.advance(ms=LEASE + 1)
        assert bob.renew()
        assert (await store.reclaim()).count == 2
        assert sorted(claim.id for claim in await everything(bob)) == sorted([parent, there, child])
    finally:
        full.run("CONFIG", "SET", "maxmemory", 0)


async def test_where_memory_is_full_runs_open_batches_and_clients_do_not(store: ClusterStore, ada: Worker) -> None:
    await store.enqueue([start("p")])
    await ada.claim_one()
    servers = shared_cluster().primaries
    for server in servers:
        server.run("CONFIG", "SET", "maxmemory", 1)
    try:
        for batch, items in (("short", 3), ("long", 700)):
            with pytest.raises(StoreUnavailable, match="is full"):
                await store.open_batch(batch, [start(f"{batch}/{n}") for n in range(items)], start(f"{batch}/then"))
            of_run = [start(f"{batch}/{n}", parent="p") for n in range(items)]
            made = await store.open_batch(batch, of_run, start(f"{batch}/then"))
            assert [each.existed for each in made] == [False] * items
        assert len(await everything(ada)) == 703
    finally:
        for server in servers:
            server.run("CONFIG", "SET", "maxmemory", 0)


# --- limits


async def test_a_group_is_exact_with_two_workers(store: ClusterStore, ada: Worker, bob: Worker) -> None:
    groups = [f"g{n}" for n in range(10)]
    await store.enqueue([start(f"{group}-{n}", group=group, group_limit=2) for n in range(6) for group in groups])
    order: dict[str, list[str]] = {group: [] for group in groups}
    running: list[tuple[Worker, Claim]] = []
    while True:
        for one in (ada, bob):
            running += [(one, claim) for claim in await one.claim(7)]
        assert max(Counter(claim.group for _, claim in running).values(), default=0) <= 2
        if not running:
            break
        one, claim = running.pop(0)
        order[claim.group].append(claim.id)
        await one.settle(claim)
    assert all(sorted(ids) == sorted(f"{group}-{n}" for n in range(6)) for group, ids in order.items())


@pytest.mark.parametrize("limit", [1, 8, 20])
async def test_the_limit_of_a_queue_is_divided_and_rounded_up(
    store: ClusterStore, ada: Worker, bob: Worker, limit: int
) -> None:
    await store.set_limits(of_queue(), Limits(running=limit), "me")
    await store.enqueue([start() for _ in range(400)])
    claims = [claim for batch in await asyncio.gather(everything(ada), everything(bob)) for claim in batch]
    assert limit <= len(claims) <= limit + PARTITIONS - 1
    [shown] = await store.limits()
    assert (shown.limits.running, shown.running) == (limit, len(claims))
    await store.set_limits(of_queue(), Limits(running=limit * 2), "me")
    more = await everything(bob)
    assert 2 * limit <= len(claims) + len(more) <= 2 * limit + PARTITIONS - 1
    assert [each.revision for each in await store.revisions()] == [2, 1]


async def test_a_rate_is_divided(store: ClusterStore, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_queue(), Limits(rate=Rate(16, 1000, 16)), "me")
    await store.enqueue([start() for _ in range(400)])
    assert len(await everything(ada)) == 16
    clock.advance(ms=10_000)
    assert 16 <= len(await everything(ada)) <= 16 + PARTITIONS


async def test_what_is_set_for_a_group_holds_where_it_lies(store: ClusterStore, ada: Worker) -> None:
    await store.set_limits(of_group("g"), Limits(running=3), "me")
    await store.enqueue([start(group="g") for _ in range(5)])
    assert len(await everything(ada)) == 3
    [shown] = await store.limits()
    assert (shown.running, shown.queues) == (3, 1)


async def test_a_pause_holds_everywhere_and_also_where_it_did_not_arrive(store: ClusterStore, ada: Worker) -> None:
    # Whoever pauses comes no further than to the first partition.
    await single.pause(store._parts.first, of_queue(), "me", paused=True)
    assert (await store.pause(of_queue(), "me")).revision == 1
    await store.enqueue([start() for _ in range(40)])
    assert await everything(ada) == []
    await store.pause(of_queue(), "me", paused=False)
    assert len(await everything(ada)) == 40


# --- families, waits


async def test_children_live_with_their_parents(store: ClusterStore, ada: Worker) -> None:
    await store.enqueue([start(f"p{n}") for n in range(10)])
    parents = await everything(ada)
    await ada.exchange(
        saves=[save(each, checkpoint("k", f'"{each.id}/c"'), starts=start(f"{each.id}/c")) for each in parents]
    )
    await ada.exchange(settles=[settle(each, To.PARK, waits=[for_run(f"{each.id}/c")]) for each in parents])
    children = {claim.id: claim for claim in await everything(ada)}
    assert {id: partition(claim) for id, claim in children.items()} == {
        f"{each.id}/c": partition(each) for each in parents
    }
    assert await store.cancel("p0", "enough") is State.CANCELLED
    assert (await record(store, "p0/c")).cancelling == "enough"
    for claim in children.values():
        await ada.settle(claim, body="7")
    woken = await everything(ada)
    assert sorted(claim.id for claim in woken) == sorted(each.id for each in parents if each.id != "p0")
    assert all(claim.ended[0].body == "7" for claim in woken)
    assert await store.delete("p1", force=True) == 2
    assert await store.load("p1/c") is None


async def test_ids_that_are_made_for_children_are_at_home_with_their_parents(
    store: ClusterStore, ada: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no other partition has to be there for a child that lies with its parent."""
    home = store._parts.home
    for n in range(50):
        parent = f"orders/{n}"
        for child in ("/kid.0123abcd", "/kid#2.0123abcd/its kid.89abcdef", "/kid.batch.0123abcd/17"):
            assert home(parent + child) == home(parent)
    assert len({home(f"orders/{n}") for n in range(50)}) > 1
    await store.enqueue([start("p")])
    claim = await ada.claim_one()
    by_hash = {(id := f"p/kid.{n:08x}"): slot(id.encode()) % len(store._parts.sessions) for n in range(100)}
    child = next(id for id, where in by_hash.items() if where != partition(claim))
    outage = Outage(store, by_hash[child], monkeypatch)
    while not store._parts.reach.out():
        await ada.exchange()
    reply = await ada.exchange(saves=[save(claim, checkpoint("kid"), starts=start(child))])
    assert (reply.unsaid, reply.existed) == ([], [])
    assert (await record(store, child)).parent == "p"
    await outage.end()


async def test_a_child_that_exists_elsewhere_is_told_of(store: ClusterStore, ada: Worker) -> None:
    parent, same, other = apart(store, "p", "s", "o")
    await store.enqueue([start(parent)])
    claim = await ada.claim_one()
    await store.enqueue([start(same), start(other, input='"other"')])
    saves = [save(claim, checkpoint(key, f'"{id}"'), starts=start(id)) for key, id in (("a", same), ("b", other))]
    reply = await ada.exchange(saves=saves)
    assert sorted(reply.existed, key=lambda each: each.key) == [
        Existed(claim.token, "a", same, True),
        Existed(claim.token, "b", other, False),
    ]
    assert [each.key for each in await store.history(parent)] == ["a"]


async def test_a_child_that_can_not_lie_with_its_parent_is_refused(store: ClusterStore, ada: Worker) -> None:
    parent, group = apart(store, "p", "g")
    await store.enqueue([start(parent)])
    claim = await ada.claim_one()
    reply = await ada.save(claim, checkpoint("a"), starts=start("c", group=group))
    [existed] = reply.existed
    assert "its group and its parent lie in different partitions" in existed.refused
    assert await store.history(parent) == []


async def test_a_run_waits_for_one_of_another_partition(store: ClusterStore, ada: Worker, bob: Worker) -> None:
    waiter, target = apart(store, "w", "t")
    await store.enqueue([start(waiter)])
    claim = await ada.claim_one()
    await store.enqueue([start(target)])
    await ada.park(claim, for_run(target))
    [running] = await everything(bob)
    assert (await record(store, waiter)).state is State.WAITING
    assert (await bob.settle(running, body="7")).more  # What it woke elsewhere can be claimed at once.
    [woken] = [*await everything(bob), *await everything(ada)]
    assert [(ended.id, ended.body) for ended in woken.ended] == [(target, "7")]
    # It is over already; and one that is gone.
    await (ada if woken.token >> 40 == ada.id else bob).park(woken, for_run(target))
    [again] = await everything(ada)
    assert [ended.id for ended in again.ended] == [target]
    await store.delete(target)
    await ada.park(again, for_run(target))
    [last] = await everything(ada)
    assert (last.ended, last.missing) == ([], [f"result:{target}"])


async def test_a_run_that_waits_for_many_of_other_partitions_is_put_down_in_several_calls(
    store: ClusterStore, ada: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [f"o{n}" for n in range(2_000)]
    await store.enqueue([start("r"), *(start(each, queue="other") for each in others)])
    claim = await ada.claim_one()
    asked: list[int] = []
    call = Session.call

    async def noted(session: Session, name: str, args: Any = None, **options: Any) -> Any:
        if name == "await":
            asked.append(len(args))
        return await call(session, name, args, **options)

    monkeypatch.setattr(Session, "call", noted)
    await ada.exchange(settles=[settle(claim, To.PARK, waits=[for_run(each) for each in others])])
    while (await ada.exchange()).more:
        pass
    assert max(asked) <= 100 < sum(asked)
    await store.cancel(others[-1], "enough")
    [claim] = [*await everything(ada), *await everything(ada)]
    assert [each.id for each in claim.ended] == [others[-1]]


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_who_waits_elsewhere_learns_of_what_clients_do(store: ClusterStore, ada: Worker, how: str) -> None:
    waiter, target = apart(store, "w", "t")
    await store.enqueue([start(waiter)])
    claim = await ada.claim_one()
    await store.enqueue([start(target, delay=DAY)])
    await ada.park(claim, for_run(target))
    assert await everything(ada) == []
    if how == "cancel":
        await store.cancel(target, "enough")
    else:
        await store.delete(target, force=True)
    await everything(ada)
    [woken] = [run for run in await store.runs(RunQuery(states=[State.QUEUED, State.RUNNING])) if run.id == waiter]
    assert woken.waits == []


async def test_an_end_that_comes_before_the_run_is_parked_is_not_lost(store: ClusterStore, ada: Worker) -> None:
    waiter, target = apart(store, "w", "t")
    await store.enqueue([start(waiter), start(target)])
    claims = {claim.id: claim for claim in await everything(ada)}
    parked = settle(claims[waiter], To.PARK, waits=[for_run(target)])
    parked.ref = waiter
    at = await store._places.locate([target])
    over = await waits.put_down(store._places, {partition(claims[waiter]): [parked]}, at)
    assert [*over.values()] == [False]
    await ada.settle(claims[target], body="7")  # And the mail is delivered.
    await ada.park(claims[waiter], for_run(target))
    [woken] = await everything(ada)
    assert woken.id == waiter


async def test_a_run_that_goes_on_sees_the_end_of_another(store: ClusterStore, ada: Worker) -> None:
    waiter, target = apart(store, "w", "t")
    await store.enqueue([start(waiter), start(target)])
    claims = {claim.id: claim for claim in await everything(ada)}
    reply = await ada.exchange(watches=[watch(claims[waiter], for_run(target))])
    assert reply.seen == []
    assert reply.next_at is not None and reply.next_at <= reply.now + 1000
    await ada.settle(claims[target], body="7")
    [seen] = (await ada.exchange(watches=[watch(claims[waiter], for_run(target))])).seen
    assert (seen.ref, seen.ended and seen.ended.body) == (claims[waiter].ref, "7")


async def test_a_watch_for_a_run_elsewhere_takes_no_other_run_away(store: ClusterStore, ada: Worker) -> None:
    waiter, target = apart(store, "w", "t")
    beside = f"beside {{{waiter}}}"
    await store.enqueue([start(waiter), start(beside), start(target)])
    claims = {claim.id: claim for claim in await everything(ada)}
    await ada.exchange(watches=[watch(claims[waiter], for_run(target))])
    assert (await ada.settle(claims[beside], body="1")).refused == []
    stale = with_token(claims[waiter], claims[waiter].token + 1)
    assert (await ada.exchange(watches=[watch(stale, for_run(target))])).refused == [stale.token]


# --- partitions that can't be reached


class Outage:
    """A partition that does not answer."""

    def __init__(self, store: ClusterStore, partition: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.back = asyncio.Event()
        self._store = store
        self._partition = partition
        self._answered = False
        session = store._parts.sessions[partition]
        call = session.call

        async def fail(name: str, args: object = None, **options: Any) -> Any:
            if self.lasts:
                if self._answered and name == "exchange":
                    await call(name, args, **options)  # And the answer is lost.
                raise StoreUnavailable("nobody there")
            return await call(name, args, **options)

        self.lasts = True
        monkeypatch.setattr(session, "call", fail)

    def lose_answers(self) -> None:
        self._answered = True

    async def end(self) -> None:
        """Returns when the store has noticed."""
        self.lasts = False
        async with asyncio.timeout(PATIENCE):
            while self._store._parts.reach.out():
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("answers", [True, False], ids=["answers are lost", "nothing is done"])
async def test_what_a_lost_partition_was_told_is_told_again_and_others_go_on(
    store: ClusterStore, ada: Worker, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    lost, fine, other = apart(store, "l", "f", "o")
    await store.enqueue([start(lost), start(fine), start(other)])
    claims = {claim.id: claim for claim in await everything(ada)}
    gone, here, there = claims[lost], claims[fine], claims[other]
    outage = Outage(store, partition(gone), monkeypatch)
    if answers:
        outage.lose_answers()
    saves, settles = [save(each, checkpoint("k")) for each in (gone, here)], [settle(gone, body="1")]
    for _ in range(3):
        reply = await ada.exchange(saves=saves, settles=settles)
        assert (reply.unsaid, reply.refused, reply.more) == ([gone.token], [], False)
    # A child whose id is at home there has to wait; all else goes on.
    child = save(here, checkpoint("c"), starts=start(f"{{{lost}}}/c"))
    reply = await ada.exchange(saves=[child], settles=[settle(there, body="2")])
    assert reply.unsaid == [here.token]
    reply = await ada.exchange(
        watches=[watch(here, for_run(lost))], owned=[(each.ref, each.token) for each in (gone, here)]
    )
    assert (reply.seen, reply.unsaid, reply.refused) == ([], [], [])
    assert [kept.key for kept in await store.history(fine)] == ["k"]
    await store.enqueue([start(f"{n}{{{fine}}}") for n in range(5)])
    assert len(await everything(ada)) == 5
    await outage.end()
    reply = await ada.exchange(saves=[*saves, child], settles=settles)
    assert (reply.unsaid, reply.refused, reply.existed) == ([], [], [])
    assert [(kept.key, kept.position) for kept in await store.history(lost)] == [("k", 1)]
    assert (await record(store, lost)).body == "1"
    assert [each.id for each in await store.runs(RunQuery(parent=fine))] == [f"{{{lost}}}/c"]


async def test_a_run_that_waits_for_one_of_a_lost_partition_takes_no_slot(
    store: ClusterStore, ada: Worker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, waiter, other = apart(store, "l", "w", "o")
    await store.enqueue([start(lost), start(waiter), start(other)])
    claims = {claim.id: claim for claim in await everything(ada)}
    outage = Outage(store, partition(claims[lost]), monkeypatch)
    waiting = claims[waiter]
    for _ in range(3):  # At first nobody knows yet that the partition is out of reach.
        assert (await ada.park(waiting, for_run(lost), for_run(other))).unsaid == []
        found = await record(store, waiter)
        assert (found.state, [wait.target for wait in found.waits]) == (State.WAITING, [lost, other])
        assert await everything(ada) == []
        clock.advance(ms=PUT_OFF)
        [waiting] = await everything(ada)
        assert (waiting.id, waiting.ended, waiting.missing) == (waiter, [], [])
    # What can be reached wakes it at once.
    await ada.park(waiting, for_run(lost), for_run(other))
    await ada.settle(claims[other], body="2")
    [waiting] = await everything(ada)
    assert [(ended.id, ended.body) for ended in waiting.ended] == [(other, "2")]
    await ada.park(waiting, for_run(lost))
    await outage.end()
    clock.advance(ms=PUT_OFF)
    [waiting] = await everything(ada)
    await ada.park(waiting, for_run(lost))
    clock.advance(ms=PUT_OFF)
    assert await everything(ada) == []
    await ada.settle(claims[lost], body="1")
    [waiting] = await everything(ada)
    assert [(ended.id, ended.body) for ended in waiting.ended] == [(lost, "1")]


async def test_what_was_claimed_of_a_lost_partition_is_heard_of_when_it_answers(
    store: ClusterStore, ada: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, fine = apart(store, "l", "f")
    await everything(ada)
    await store.enqueue([start(lost), start(fine)])
    outage = Outage(store, store._parts.home(lost), monkeypatch)
    outage.lose_answers()
    assert [claim.id for claim in await ada.claim(20)] == [fine]
    assert await ada.claim(20) == []
    await outage.end()
    [heard] = await everything(ada)
    assert (heard.id, (await record(store, lost)).attempt) == (lost, 1)
    assert (await ada.settle(heard, body="1")).refused == []


async def test_a_run_is_deleted_while_another_partition_is_lost(
    store: ClusterStore, ada: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is to be cleared away there, and here for want of it, is left for later."""
    lost, here, group = apart(store, "l", "h", "g")
    homes = [store._parts.home(name) for name in (lost, here, group)]
    away = f"{{{lost}}}/away"
    await store.enqueue([start(here), start(away, group=group)])
    for claim in await everything(ada):
        await ada.settle(claim, body="1")
    outage = Outage(store, homes[0], monkeypatch)
    assert await store.delete(here) == 1
    assert await store.delete(away) == 1
    await outage.end()
    assert await store._parts.sessions[homes[0]].call("places", [away]) != [""]
    await store._places.tidy()
    assert await store._parts.sessions[homes[0]].call("places", [away]) == [""]


async def test_an_exchange_that_nobody_answers_fails(
    store: ClusterStore, ada: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages = [Outage(store, each, monkeypatch) for each in range(PARTITIONS)]
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="nobody there"):
            await ada.claim()
    for outage in outages:
        await outage.end()
    await store.enqueue([start("r")])
    [claim] = (await ada.repeat()).claims or await ada.claim()
    assert claim.id == "r"


# --- lists


async def test_lists_are_in_order_page_by_page(store: ClusterStore, ada: Worker, clock: ManualClock) -> None:
    for n in range(60):
        await store.enqueue([start(f"r{n}", group=f"g{n % 7}" if n % 2 else "", labels={"n": str(n % 3)})])
        clock.advance(ms=1)
    for oldest_first in (False, True):
        expected = [f"r{n}" for n in (range(60) if oldest_first else reversed(range(60)))]
        seen: list[str] = []
        after: int | None = None
        while page := await store.runs(RunQuery(limit=7, after=after, oldest_first=oldest_first)):
            seen += [run.id for run in page]
            after = page[-1].position
        assert seen == expected
    assert {run.id for run in await store.runs(RunQuery(group="g3"))} == {
        f"r{n}" for n in range(60) if n % 7 == 3 and n % 2
    }
    assert len(await store.runs(RunQuery(labels={"n": "1"}))) == 20
    [count] = await store.counts()
    assert (count.state, count.runs) == (State.QUEUED, 60)
    for claim in await everything(ada):
        await ada.settle(claim, To.FAILED, "1", cause="a" if int(claim.id[1:]) % 2 else "b")
    # Of each of the groups one has run.
    assert [(each.cause, each.runs) for each in await store.failures(RunQuery())] == [("b", 30), ("a", 7)]
    assert len(await store.retry_many(RunQuery(cause="b", limit=100))) == 30


async def test_schedules_and_batches(store: ClusterStore, ada: Worker, clock: ManualClock) -> None:
    at = clock.now()
    for n in range(10):
        made = Schedule(name=f"s{n}", every=1000, start=start(f"unused{n}"))
        await store.put_schedule(made, at + 1000, declared=True)
    assert [each.schedule.name for each in await store.schedules()] == sorted(f"s{n}" for n in range(10))
    clock.advance(ms=1000)
    due = (await ada.exchange()).due
    assert len(due) == 10
    fires = [
        Fire(each.schedule.name, at + 1000, [start(f"{each.schedule.name}@1")], next_slot=at + 2000) for each in due
    ]
    assert len((await ada.exchange(slots=64, fires=fires)).claims) + len(await everything(ada)) == 10
    assert (await ada.exchange(fires=fires)).due == []
    assert (await store.pause_schedule("s3")).paused

    [*_, done] = [*await store.open_batch("b", [start(f"b{n}") for n in range(20)], start("done")), "done"]
    assert await store.open_batch("b", [start(f"b{n}") for n in range(20)], start("done"))
    claims = await everything(ada)
    assert len({partition(claim) for claim in claims}) == 1
    for claim in claims:
        await ada.settle(claim, body="1")
    assert (await ada.claim_one()).id == done
    found = await store.batch("b")
    assert found is not None and found.succeeded == 20
    with pytest.raises(IdConflict):
        await store.open_batch("b", [start("b0")], None)


async def test_a_paused_schedule_stays_paused_when_it_moves_whoever_moves_it_first(
    store: ClusterStore, make_store: MakeStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = apart(store, "g", "g")
    at, elsewhere = clock.now() + 1000, await make_store()

    def of(group: str) -> Schedule:
        return Schedule(name="s", every=1000, start=start("unused", group=group))

    await store.put_schedule(of(one), at, declared=True)
    await store.pause_schedule("s")
    there = store._parts.sessions[store._parts.home(one)]
    call = there.call

    async def come_late(name: str, args: object = None, **options: Any) -> Any:
        if name == "remove_schedule":
            assert (await elsewhere.put_schedule(of(other), at, declared=True)).paused
        return await call(name, args, **options)

    monkeypatch.setattr(there, "call", come_late)
    assert (await store.put_schedule(of(other), at, declared=True)).paused
    assert [(each.schedule.start.group, each.paused) for each in await store.schedules()] == [(other, True)]
    assert not (await store.resume_schedule("s", at)).paused


# --- workers


async def test_who_is_to_blame_is_decided_for_all_partitions_together(
    store: ClusterStore, ada: Worker, clock: ManualClock
) -> None:
    await store.enqueue([start(max_crashes=1) for _ in range(20)])
    assert len(await everything(ada)) == 20
    clock.advance(ms=LEASE + 1)
    assert (await store.reclaim()).count == 20
    # One of twenty that crash together is not poison at the first crash, as it would be if it had been alone.
    assert {run.state for run in await store.runs(RunQuery())} <= {State.QUEUED, State.SCHEDULED}
    assert await store.workers() == []
    assert (await ada.exchange()).gone


async def test_a_worker_owns_no_more_sessions_than_it_wants_in_all_partitions(store: ClusterStore) -> None:
    ada, bob = await worker(store, sessions=3), await worker(store, sessions=20)
    await store.enqueue([start(f"{n}{k}", session=f"s{n}") for n in range(12) for k in "ab"])
    claims = await everything(ada)
    assert {*Counter(claim.session for claim in claims).values()} == {2}
    assert len({claim.session for claim in claims}) == 3
    assert len(await everything(bob)) == 18
    for claim in claims:
        await ada.settle(claim)
    assert await everything(ada) == []


async def test_a_partition_that_took_a_worker_for_dead_takes_it_again(store: ClusterStore, ada: Worker) -> None:
    await store.enqueue([start() for _ in range(30)])
    for session in store._parts.sessions[1:]:
        await session.call("retire", {"worker": ada.id})
    claims = await everything(ada)
    assert len(claims) == 30
    assert ada.renew()
    await store.retire(ada.id)
    assert (await ada.exchange()).gone


async def test_a_wake_up_says_where(store: ClusterStore, ada: Worker) -> None:
    rang = asyncio.Event()
    subscription = await store.subscribe(Topic.WORK, rang.set)
    await everything(ada)
    calls = store.calls
    await ada.exchange(slots=10)
    assert store.calls - calls <= 2
    for n in range(20):
        rang.clear()
        await store.enqueue([start(f"r{n}")])
        async with asyncio.timeout(PATIENCE):
            await rang.wait()
        calls = store.calls
        assert [claim.id for claim in await ada.claim(10)] == [f"r{n}"]
        assert store.calls - calls <= 2 + PARTITIONS // 2
    await subscription.close()


# --- what is left, and what is refused


async def test_nothing_is_left_of_what_was_pruned(
    store: ClusterStore, ada: Worker, clock: ManualClock, url: str
) -> None:
    def keys() -> set[bytes]:
        return {
            key for server in shared_cluster().primaries for key in server.run("KEYS", f"*{url.rpartition('=')[2]}:*")
        }

    left = (b":run:", b":where:", b":gone", b":mail", b":parked:", b":members:", b":group", b":unique:", b":taken:")
    waiter, target = apart(store, "w", "t")
    await store.enqueue([start(waiter), start(target)])
    await store.enqueue([start(f"r{n}", group=f"g{n % 5}" if n % 2 else "") for n in range(40)])
    await store.enqueue([start("u1", unique=Unique("k")), start("u2", unique=Unique("k"))])
    claims = {claim.id: claim for claim in await everything(ada)}
    await ada.park(claims[waiter], for_run(target))
    await ada.save(claims["r0"], checkpoint("k"), starts=start("child"))
    claims.pop(waiter)
    while claims:
        for claim in claims.values():
            await ada.settle(claim, body="1")
        claims = {claim.id: claim for claim in await everything(ada)}
    assert any(b":where:" in key for key in keys())
    clock.advance(ms=DAY)
    assert await store.prune([Retention(age=1)], limit=10) == 10
    assert await store.prune([Retention(age=1)], limit=500) == 34
    assert await store.runs(RunQuery()) == []
    assert [key for key in keys() if any(each in key for each in left)] == []


async def test_the_newest_are_kept_of_all_partitions(store: ClusterStore, ada: Worker, clock: ManualClock) -> None:
    for n in range(30):
        await store.enqueue([start(f"r{n}", group="g" if n % 3 else "")])
        await ada.settle(await ada.claim_one(), body="1")
        clock.advance(ms=1)
    assert [await store.prune([Retention(count=10)], limit=15) for _ in range(3)] == [15, 5, 0]
    assert {run.id for run in await store.runs(RunQuery())} == {f"r{n}" for n in range(20, 30)}


async def test_another_number_of_partitions_is_refused(store: ClusterStore, url: str) -> None:
    other = open_store(url.replace(f"partitions={PARTITIONS}", "partitions=4"))
    with pytest.raises(StoreError, match="has its runs in 8 partitions, and not in 4: write partitions=8"):
        await other.open()


async def test_a_url_of_the_wrong_kind_is_refused() -> None:
    plain = open_store(shared_cluster().url.replace("redis+cluster", "redis").split(",")[0])
    with pytest.raises(StoreError, match="is a node of a cluster: write redis\\+cluster://"):
        await plain.open()
    await plain.close()
    clustered = open_store(redis_url("wrong kind").replace("redis://", "redis+cluster://"))
    with pytest.raises(StoreError, match="is one server, and no cluster"):
        await clustered.open()
    await clustered.close()
    for option in ("partitions=0", "partitions=1025", "partitions=many"):
        with pytest.raises(StoreUrlError, match="partitions is a number from 1 to 1024"):
            open_store(f"redis+cluster://localhost?{option}")
    with pytest.raises(StoreUrlError, match="a cluster has no databases"):
        open_store("redis+cluster://localhost/3")
