"""Lanes on Redis: they go with their last run, and however many there are, no script is long for it. What a script does
is counted in commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from conformance.kit import (
    BILL,
    EVERYTHING,
    SHIP,
    ManualClock,
    all_runs,
    of_queue,
    of_workflow,
    start,
    worker,
)
from perdure.model import Limits, Rate, Retention
from perdure.stores import open_store
from perdure.stores.base import Store
from servers.redis import RedisServer, own_server
from servers.redis_books import Books
from servers.redis_meter import Meter

pytestmark = pytest.mark.anyio

LANES = 600
MOST = 2_000
"""The most commands of one script."""
HOUR = 3_600_000


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with own_server() as server:
        yield server


@pytest.fixture
def url(server: RedisServer) -> str:
    server.run("FLUSHALL")
    return server.namespace()


@pytest.fixture
async def store(url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = open_store(url, now=clock.now)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def meter(store: Store, monkeypatch: pytest.MonkeyPatch) -> Meter:
    return Meter(MOST, monkeypatch)


async def ended(store: Store, clock: ManualClock, ids: list[str]) -> None:
    """Runs that have ended one after the other, each of a lane of its own."""
    await store.enqueue([start(id, queue=f"q-{id}") for id in ids])
    for id in ids:
        await store.cancel(id, "x")
    clock.advance(ms=HOUR)


async def left(store: Store) -> list[str]:
    return [run.id for run in await all_runs(store)]


# --- pruning


async def test_pruning_many_lanes(store: Store, clock: ManualClock, meter: Meter) -> None:
    ids = [f"r{n}" for n in range(LANES)]
    await ended(store, clock, ids)
    meter.calls.clear()
    assert await store.prune([Retention(age=HOUR)], limit=LANES // 2) == LANES // 2
    assert await left(store) == ids[LANES // 2 :], "the oldest of all lanes go first"
    assert await store.prune([Retention(count=10)], limit=LANES) == LANES // 2 - 10
    assert await left(store) == ids[-10:]
    meter.check()


async def test_looking_for_what_can_be_pruned_where_nothing_can(
    store: Store, clock: ManualClock, meter: Meter, server: RedisServer
) -> None:
    await ended(store, clock, [f"r{n}" for n in range(LANES)])
    meter.calls.clear()
    assert await store.prune([Retention(age=2 * HOUR)], limit=100) == 0
    assert await store.prune([Retention(count=LANES)], limit=100) == 0
    assert "endings" in {name for _, name in meter.calls}
    meter.check(600)


async def test_several_that_prune_long_lanes_at_once_keep_the_number(store: Store, clock: ManualClock) -> None:
    ids = [f"r{n:03}" for n in range(500)]
    await store.enqueue([start(id, queue=f"q{n % 3}") for n, id in enumerate(ids)])
    for id in ids:
        await store.cancel(id, "x")
    removed = await asyncio.gather(*(store.prune([Retention(count=9)], limit=limit) for limit in (100, 300, 500) * 3))
    assert sum(removed) == 491
    assert await left(store) == ids[-9:]


async def test_of_several_policies_the_oldest_ends_go_first(store: Store, clock: ManualClock) -> None:
    for n in range(40):
        await store.enqueue([start(f"s{n}"), start(f"b{n}", workflow=BILL)])
        await store.cancel(f"s{n}", "x")
        await store.cancel(f"b{n}", "x")
        clock.advance(ms=1_000)
    policies = [Retention(age=30_000), Retention(workflow=BILL, age=20_000, count=15)]
    assert await store.prune(policies, limit=15) == 15
    assert await left(store) == [f"{which}{n}" for n in range(7, 40) for which in "sb" if (which, n) != ("s", 7)]
    assert await store.prune(policies, limit=100) == 21
    assert {id for id in await left(store) if id[0] == "b"} == {f"b{n}" for n in range(25, 40)}
    assert {id for id in await left(store) if id[0] == "s"} == {f"s{n}" for n in range(11, 40)}


# --- lanes that go


def kept(server: RedisServer, url: str) -> dict[str, Any]:
    books = Books(server, url)
    books.check()
    return books.kept


@pytest.mark.parametrize("how", ["pruned", "deleted"])
async def test_a_lane_goes_with_its_last_run(
    store: Store, clock: ManualClock, server: RedisServer, url: str, how: str
) -> None:
    ada = await worker(store, sessions=1)
    await store.enqueue([start("a"), start("b", workflow=BILL), start("s", session="x")])
    claims = await ada.claim()
    assert len(kept(server, url)["lanes"]) == 2
    for claim in claims:
        await ada.settle(claim)
    if how == "pruned":
        assert await store.prune([Retention(age=0)], limit=100) == 3
    else:
        for id in "abs":
            await store.delete(id)
    assert not {"lanes", "hot", "counts", f"served:{ada.id}"} & {*kept(server, url)}
    assert await store.queues() == []
    # The worker serves it again when it comes again.
    await store.enqueue([start("b", workflow=BILL), start("t", session="x")])
    assert [claim.id for claim in await ada.claim()] == ["b", "t"]


async def test_a_lane_stays_for_what_is_left(store: Store, clock: ManualClock, server: RedisServer, url: str) -> None:
    await store.enqueue([start("a"), start("b")])
    await store.delete("a", force=True)
    assert len(kept(server, url)["lanes"]) == 1
    ada = await worker(store)
    assert [claim.id for claim in await ada.claim()] == ["b"]


@pytest.mark.parametrize("scope", [EVERYTHING, of_queue(), of_workflow(SHIP)], ids=lambda scope: scope.kind)
async def test_a_pause_holds_for_a_lane_that_comes_again(store: Store, clock: ManualClock, scope: Any) -> None:
    ada = await worker(store)
    await store.enqueue([start("a")])
    await store.pause(scope, "ada")
    await store.delete("a", force=True)
    await store.enqueue([start("b")])
    assert await ada.claim() == []
    [report] = await store.queues()
    assert (report.ready, [held.reason for held in report.held]) == (0, ["paused"])
    await store.delete("b", force=True)
    await store.pause(scope, "ada", paused=False)
    await store.enqueue([start("c")])
    assert [claim.id for claim in await ada.claim()] == ["c"]


async def test_lanes_of_a_limit_that_go(store: Store, clock: ManualClock, server: RedisServer, url: str) -> None:
    await store.set_limits(of_queue(), Limits(running=1, rate=Rate(1, HOUR, 1)), "ada")
    ada = await worker(store)
    await store.enqueue([start("a")])
    await ada.settle(await ada.claim_one())
    await store.prune([Retention(age=0)], limit=100)
    await store.enqueue([start("b")])
    assert await ada.claim() == [], "what the rate has counted is not forgotten"
    clock.advance(ms=HOUR)
    assert [claim.id for claim in await ada.claim()] == ["b"]
