"""No call keeps a Redis server busy for long, whatever there is: what one script does is counted in commands, a measure
that does not depend on how fast the machine is. A script of the most that is allowed takes a few milliseconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from conformance.kit import (
    EVERYTHING,
    ManualClock,
    Worker,
    all_runs,
    for_run,
    for_signal,
    of_group,
    of_queue,
    settle,
    start,
    watch,
    with_token,
    worker,
)
from perdure.errors import RunNotEnded, RunNotFound
from perdure.model import Limits, OnConflict, Rate, Retention, RunQuery, Signal, Start, State, Unique
from perdure.stores import open_store
from perdure.stores.base import Store
from perdure.stores.exchange import CLAIM_LIMIT, To
from servers.redis import RedisServer, own_server
from servers.redis_meter import Meter

pytestmark = pytest.mark.anyio

MANY = 3_000
MOST = 1_000
"""The most commands of one script."""
HOUR = 3_600_000


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with own_server() as server:
        yield server


@pytest.fixture
async def store(server: RedisServer, clock: ManualClock) -> AsyncIterator[Store]:
    server.run("FLUSHALL")
    store = open_store(server.url, now=clock.now)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def meter(store: Store, monkeypatch: pytest.MonkeyPatch) -> Meter:
    return Meter(MOST, monkeypatch)


def many(**what: Any) -> list[Start]:
    return [start(f"c{n}", **what) for n in range(MANY)]


async def states(store: Store) -> dict[State, int]:
    found: dict[State, int] = {}
    for count in await store.counts():
        found[count.state] = found.get(count.state, 0) + count.runs
    return found


async def until(worker: Worker, expected: dict[State, int]) -> None:
    """Exchanges until all runs are in the states that are expected."""
    for _ in range(MANY):
        if await states(worker.store) == expected:
            return
        await worker.exchange()
    assert await states(worker.store) == expected


async def family(store: Store, **parent: Any) -> None:
    """A parent with many children, the last of which have children of their own."""
    await store.enqueue([start("p", **parent)])
    await store.enqueue(many(parent="p"))
    await store.enqueue([start(f"g{n}", parent=f"c{MANY - 1 - n // 10}") for n in range(100)])


# --- families


async def test_cancelling_a_family(store: Store, meter: Meter) -> None:
    await family(store)
    assert await store.cancel("p", "x") == State.CANCELLED
    assert await states(store) == {State.CANCELLED: MANY + 101}
    meter.check()


async def test_deleting_a_family(store: Store, meter: Meter, server: RedisServer) -> None:
    await family(store)
    with pytest.raises(RunNotEnded, match=f"{MANY + 101} of the {MANY + 101} runs"):
        await store.delete("p")
    assert await states(store) == {State.QUEUED: MANY + 101}
    assert await store.delete("p", force=True) == MANY + 101
    with pytest.raises(RunNotFound):
        await store.delete("p")
    assert await states(store) == {}
    meter.check()


async def test_the_deadline_of_a_family(store: Store, meter: Meter, clock: ManualClock) -> None:
    await family(store, timeout=1_000)
    ada = await worker(store)
    clock.advance(ms=1_000)
    await until(ada, {State.CANCELLED: MANY + 100, State.FAILED: 1})
    meter.check()


# --- what is due at once


async def test_timers(store: Store, meter: Meter, clock: ManualClock) -> None:
    await store.enqueue(many(delay=1_000))
    ada = await worker(store)
    clock.advance(ms=1_000)
    await until(ada, {State.QUEUED: MANY})
    meter.check()


async def test_timers_of_a_group(store: Store, meter: Meter, clock: ManualClock) -> None:
    await store.enqueue(many(delay=1_000, group="g", group_limit=10, session="s"))
    ada = await worker(store, sessions=1)
    clock.advance(ms=1_000)
    await until(ada, {State.QUEUED: MANY})
    meter.check()


async def test_deadlines(store: Store, meter: Meter, clock: ManualClock) -> None:
    await store.enqueue(many(timeout=1_000, group="g", labels={"of": "x"}))
    ada = await worker(store)
    clock.advance(ms=1_000)
    await until(ada, {State.FAILED: MANY})
    meter.check()


async def test_those_who_are_parked_for_one_run(store: Store, meter: Meter, clock: ManualClock) -> None:
    await store.enqueue([start("p", priority=-1), *many()])
    ada = await worker(store, concurrency=MANY)
    [first, *others] = [claim for _ in range(MANY // CLAIM_LIMIT + 1) for claim in await ada.claim()]
    for at in range(0, MANY, CLAIM_LIMIT):
        await ada.exchange(
            settles=[settle(claim, To.PARK, waits=[for_run("p")]) for claim in others[at : at + CLAIM_LIMIT]]
        )
    assert await states(store) == {State.RUNNING: 1, State.WAITING: MANY}
    await ada.settle(first)
    await until(ada, {State.SUCCEEDED: 1, State.QUEUED: MANY})
    meter.check()


@pytest.mark.parametrize("ending", ["first", "last", "before", "cancelled"])
async def test_one_that_is_parked_for_many_runs(store: Store, meter: Meter, clock: ManualClock, ending: str) -> None:
    await store.enqueue([start("p", priority=-1), *many(queue="other")])
    ada, bob = await worker(store), await worker(store, queues=["other"], concurrency=MANY)
    [parent] = await ada.claim()
    waited = [claim for _ in range(MANY // CLAIM_LIMIT + 1) for claim in await bob.claim()]
    if ending == "before":
        await bob.settle(waited[-1])
    await ada.exchange(settles=[settle(parent, To.PARK, waits=[for_run(str(claim.ref)) for claim in waited])])
    if ending in ("first", "last"):  # While the run has not been put down at most of them.
        await bob.settle(waited[0 if ending == "first" else -1])
    if ending == "cancelled":
        await store.cancel("p", "enough")
        await until(ada, {State.CANCELLED: 1, State.RUNNING: MANY})
    else:
        await until(ada, {State.SUCCEEDED: 1, State.QUEUED: 1, State.RUNNING: MANY - 1})
        [parent] = await ada.claim()
        assert [each.id for each in parent.ended] == [waited[0 if ending == "first" else -1].id]
        # What it waits for still, it waits for again.
        await ada.exchange(settles=[settle(parent, To.PARK, waits=[for_run(str(claim.ref)) for claim in waited[1:-1]])])
        while (await ada.exchange()).more:
            pass
        await bob.settle(waited[MANY // 2])
        await until(ada, {State.SUCCEEDED: 2, State.QUEUED: 1, State.RUNNING: MANY - 2})
        await ada.settle((await ada.claim())[0])
    while (await ada.exchange()).more:
        pass
    meter.check()


async def test_one_that_watches_many_runs(store: Store, meter: Meter) -> None:
    await store.enqueue([start("p", priority=-1), *many(queue="other")])
    ada, bob = await worker(store), await worker(store, queues=["other"])
    [parent] = await ada.claim()
    [last] = await bob.claim(1)
    waits = [for_run(each.id) for each in [*many()][1:]] + [for_run("gone"), for_run(last.id)]
    watches = [watch(parent, each) for each in waits]
    assert [each.key for each in (await ada.exchange(watches=watches)).seen] == ["result:gone"]
    await bob.settle(last, body="7")
    seen = (await ada.exchange(watches=watches)).seen
    assert {each.key: each.ended and each.ended.body for each in seen} == {"result:gone": None, "result:c0": "7"}
    # One that owns its run no more is refused, and not told.
    lost = with_token(parent, parent.token + 1)
    reply = await ada.exchange(watches=[watch(lost, each) for each in waits])
    assert (reply.seen, reply.refused) == ([], [lost.token])
    meter.check()


async def test_one_that_is_parked_for_many_signals(store: Store, meter: Meter) -> None:
    await store.enqueue([start("p")])
    ada = await worker(store)
    [parent] = await ada.claim()
    await store.signal(Signal("s", "p", f"n{MANY - 1}", "1"))
    await ada.exchange(settles=[settle(parent, To.PARK, waits=[for_signal(f"n{n}") for n in range(MANY)])])
    await until(ada, {State.QUEUED: 1})
    [parent] = await ada.claim()
    await ada.exchange(settles=[settle(parent, To.PARK, waits=[for_signal(f"m{n}") for n in range(MANY)])])
    await store.signal(Signal("t", "p", f"m{MANY - 1}", "1"))
    await until(ada, {State.QUEUED: 1})
    meter.check()


# --- starts


@pytest.mark.parametrize("conflict", OnConflict)
async def test_starts_with_unique_keys(store: Store, meter: Meter, conflict: OnConflict) -> None:
    for prefix in "cd":
        starts = [
            start(f"{prefix}{n}", unique=Unique(f"k{n}", conflict, 1_000), labels={"of": "x"}, group=f"g{n % 10}")
            for n in range(MANY)
        ]
        await store.enqueue(starts)
    assert sum((await states(store)).values()) == MANY
    meter.check()


@pytest.mark.parametrize("conflict", OnConflict)
async def test_a_batch_with_unique_keys(store: Store, meter: Meter, conflict: OnConflict) -> None:
    for name in "bc":
        starts = [start(f"{name}{n}", unique=Unique(f"k{n}", conflict, 1_000)) for n in range(MANY)]
        await store.open_batch(name, starts, start(f"after-{name}"))
    assert sum((await states(store)).values()) == MANY + 2
    meter.check()


# --- limits and pauses


async def test_limits_and_pauses_of_a_group_that_waits(store: Store, meter: Meter) -> None:
    await store.enqueue(many(group="g"))
    group = of_group("g")
    for running in (MANY, 1):
        await store.set_limits(group, Limits(running=running), "ada")
        for paused in (True, False):
            await store.pause(group, "ada", paused=paused)
    meter.check()


async def begun(store: Store, clock: ManualClock, **what: Any) -> Worker:
    """Runs of a group that have begun, and are queued again."""
    await store.enqueue(many(group="g", group_limit=MANY, **what))
    ada = await worker(store, concurrency=MANY, sessions=1)
    while claims := await ada.claim():
        await ada.exchange(settles=[settle(claim, To.RETRY, "null", delay=1_000) for claim in claims])
    clock.advance(ms=1_000)
    await until(ada, {State.QUEUED: MANY})
    return ada


async def test_limits_and_pauses_of_a_group_that_has_begun(store: Store, meter: Meter, clock: ManualClock) -> None:
    ada = await begun(store, clock)
    group = of_group("g")
    await store.pause(group, "ada")
    assert await ada.claim() == []
    await store.set_limits(group, Limits(running=2), "ada")
    await store.pause(group, "ada", paused=False)
    claims = await ada.claim()
    assert [claim.id for claim in claims] == ["c0", "c1"]
    for claim in claims:
        await ada.settle(claim)
    assert [claim.id for claim in await ada.claim()] == ["c2", "c3"]
    meter.check()


async def test_the_rate_of_a_group(store: Store, meter: Meter, clock: ManualClock) -> None:
    group = of_group("g")
    await store.set_limits(group, Limits(rate=Rate(1, HOUR, 1)), "ada")
    await store.enqueue(many(group="g", group_limit=MANY))
    ada = await worker(store)
    while (await states(store)).get(State.SCHEDULED, 0) < MANY - 1:
        await ada.claim()
    await store.set_limits(group, Limits(rate=Rate(2, HOUR, 1)), "ada")
    await store.set_limits(group, Limits(), "ada")
    assert len(await ada.claim()) == CLAIM_LIMIT
    meter.check()


async def test_pauses_of_many_lanes(store: Store, meter: Meter) -> None:
    await lanes(store, 1_000)
    for _ in range(4):
        await worker(store, workflows=[f"w{n}" for n in range(1_000)])
    for scope in (EVERYTHING, of_queue()):
        for paused in (True, False):
            await store.pause(scope, "ada", paused=paused)
    meter.check()


# --- lanes


async def lanes(store: Store, number: int) -> list[str]:
    """So many workflows with a run each."""
    names = [f"w{n}" for n in range(number)]
    await store.enqueue([start(f"c{n}", workflow=name) for n, name in enumerate(names)])
    return names


async def test_a_worker_of_many_lanes(store: Store, meter: Meter, clock: ManualClock) -> None:
    names = await lanes(store, MANY)
    ada = await worker(store, workflows=names, sessions=1)
    claimed: set[str] = set()
    while claims := await ada.claim():
        claimed |= {claim.id for claim in claims}
        await ada.exchange(settles=[settle(claim) for claim in claims])
    assert len(claimed) == MANY
    clock.advance(ms=HOUR)
    await store.reclaim()
    meter.check()


async def test_reports_of_many_lanes(store: Store, meter: Meter) -> None:
    names = await lanes(store, 1_000)
    ada = await worker(store, workflows=names)
    await ada.exchange(settles=[settle(claim) for claim in await ada.claim()])
    assert sum(count.runs for count in await store.counts()) == 1_000
    await store.runs(RunQuery(states=[State.QUEUED], limit=300))
    await store.workers()
    meter.check()


# --- what has ended


async def test_pruning(store: Store, meter: Meter, clock: ManualClock) -> None:
    names = await lanes(store, 1_000)
    await store.enqueue(many(parent="c0", labels={"of": "x"}))
    for name in ("c0", *(f"c{n}" for n in range(1, 1_000))):
        await store.cancel(name, "x")
    clock.advance(ms=HOUR)
    assert names
    while await store.prune([Retention(age=1_000)], limit=500):
        pass
    assert await all_runs(store) == []
    meter.check()


async def test_retrying_what_failed(store: Store, meter: Meter, clock: ManualClock) -> None:
    await store.enqueue(many(timeout=1_000, group="g"))
    ada = await worker(store)
    clock.advance(ms=1_000)
    await until(ada, {State.FAILED: MANY})
    assert len(await store.retry_many(RunQuery(limit=2 * MANY))) == MANY
    assert len(await store.failures(RunQuery(limit=10))) == 0
    meter.check()


# --- workers


@pytest.mark.parametrize("how", ["reclaim", "bury", "retire"])
async def test_a_worker_that_has_much(store: Store, meter: Meter, clock: ManualClock, how: str) -> None:
    await store.enqueue(many())
    ada = await worker(store, concurrency=MANY)
    for _ in range(MANY // CLAIM_LIMIT + 1):
        await ada.claim()
    assert await states(store) == {State.RUNNING: MANY}
    ends: dict[str, Callable[[], Awaitable[object]]] = {
        "reclaim": store.reclaim,
        "bury": lambda: store.bury(ada.name),
        "retire": lambda: store.retire(ada.id),
    }
    clock.advance(ms=HOUR if how == "reclaim" else 0)
    await ends[how]()
    assert await states(store) == {State.QUEUED: MANY}
    meter.check()


@pytest.mark.parametrize("how", ["reclaim", "drain"])
async def test_sessions_that_change_hands(store: Store, meter: Meter, clock: ManualClock, how: str) -> None:
    await store.enqueue([start(f"c{n}", session=f"s{n % 100}") for n in range(MANY)])
    ada = await worker(store, sessions=100, session_idle=1_000)
    claims = await ada.claim()
    while len({claim.session for claim in claims}) < 100:
        claims += await ada.claim()
    for at in range(0, len(claims), CLAIM_LIMIT):
        some = claims[at : at + CLAIM_LIMIT]
        await ada.exchange(settles=[settle(claim, To.RETRY, "null", delay=10_000) for claim in some])
    if how == "drain":
        while (await store.workers())[0].owned_sessions:
            await ada.exchange(draining=True)
        await store.retire(ada.id)
    else:
        clock.advance(ms=HOUR)
        await store.reclaim()
    clock.advance(ms=HOUR)
    bob = await worker(store, sessions=100)
    while (await store.workers())[0].owned_sessions < 64:
        assert await bob.claim()
    meter.check()


# --- who does the rest


async def test_workers_go_on_where_somebody_has_left_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await family(store)
    with monkeypatch.context() as within:
        within.setattr("perdure.stores.redis.retention.finish_left", nothing)
        assert await store.delete("p", force=True) == MANY + 101
        within.setattr("perdure.stores.redis.control.finish_left", nothing)
        await store.enqueue([start("p")])
        await store.enqueue([start(f"new{n}", parent="p") for n in range(200)])
        await store.cancel("p", "x")
    assert len(await all_runs(store)) > 201
    await store.reclaim()
    assert await states(store) == {State.CANCELLED: 201}, "another run of the same id keeps its own children"


async def test_a_delete_is_repeated(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await family(store)
    with monkeypatch.context() as within:
        within.setattr("perdure.stores.redis.retention.finish_left", nothing)
        await store.delete("p", force=True)
    assert await store.delete("p", force=True) == MANY + 101
    assert await states(store) == {}


async def test_exchanges_go_on_where_somebody_has_left_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await family(store)
    with monkeypatch.context() as within:
        within.setattr("perdure.stores.redis.control.finish_left", nothing)
        await store.cancel("p", "x")
    assert (await states(store))[State.QUEUED] > 0
    await until(await worker(store), {State.CANCELLED: MANY + 101})


async def test_a_reclaim_goes_on_with_what_another_one_has_begun(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.enqueue(many())
    ada = await worker(store, concurrency=MANY)
    for _ in range(MANY // CLAIM_LIMIT + 1):
        await ada.claim()
    clock.advance(ms=HOUR)
    with monkeypatch.context() as within:
        within.setattr("perdure.stores.redis.chores.finish", none)
        await store.reclaim()
    assert (await states(store))[State.RUNNING] > 0
    await store.reclaim()
    assert await states(store) == {State.QUEUED: MANY}


async def none(*_: object) -> int:
    """As many runs as a program takes back that has ended."""
    return 0


async def nothing(*_: object) -> None:
    """What a program does that has ended."""
