"""Versions: runs pinned to code that serves it."""

from __future__ import annotations

import pytest

from conformance.kit import BILL, SHIP, Worker, ids, record, start, worker
from perdure.stores.base import Store

pytestmark = pytest.mark.anyio


async def test_a_pinned_run_goes_to_a_worker_of_its_version_alone(store: Store, ada: Worker) -> None:
    await store.enqueue([start("one", version="1"), start("two", version="2"), start("any")])
    assert ids(await ada.claim()) == ["any"]
    newer = await worker(store, versions={SHIP: ["2"]})
    [claim] = await newer.claim()
    assert (claim.id, claim.version) == ("two", "2")
    assert await newer.claim() == []
    assert (await record(store, "one")).version == "1"


@pytest.mark.one_partition("the order within a queue")
async def test_newer_code_may_take_older_runs(store: Store) -> None:
    await store.enqueue([start(f"{version}{n}", version=version) for n in range(2) for version in ("1", "2", "")])
    both = await worker(store, versions={SHIP: ["1", "2"]})
    assert ids(await both.claim()) == ["10", "20", "0", "11", "21", "1"]


async def test_versions_belong_to_their_workflow(store: Store) -> None:
    await store.enqueue([start("s", version="1"), start("b", version="1", workflow=BILL)])
    each = await worker(store, versions={BILL: ["1"]})
    assert ids(await each.claim()) == ["b"]


async def test_lanes_that_come_later_are_served_too(store: Store) -> None:
    early = await worker(store, versions={SHIP: ["7"]})
    await store.enqueue([start("a", version="7"), start("b", version="8")])
    assert ids(await early.claim()) == ["a"]


@pytest.mark.parametrize("version", ["@", "v@", "v@1", "v;@2", "1:x"])
async def test_names_of_versions_are_any_text(store: Store, version: str) -> None:
    """Neither those of workers that may own sessions, nor those of lanes that such a worker has left."""
    for sessions in (0, 2, 0):
        each = await worker(store, versions={SHIP: [version]}, sessions=sessions)
        await store.enqueue([start("mine", version=version), start("not mine", version="v")])
        assert ids(await each.claim()) == ["mine"]
        await store.retire(each.id)


async def test_a_start_under_another_version_is_the_same_run(store: Store) -> None:
    await store.enqueue([start("a", version="1")])
    [again] = await store.enqueue([start("a", version="2")])
    assert (again.existed, again.same) == (True, True)
    assert (await record(store, "a")).version == "1"


async def test_workers_say_which_versions_they_serve(store: Store) -> None:
    await worker(store, versions={SHIP: ["1", "2"], BILL: ["x"]}, sessions=3)
    [shown] = await store.workers()
    assert (shown.versions, shown.sessions) == ({SHIP: ["1", "2"], BILL: ["x"]}, 3)


async def test_runs_of_an_unknown_version_hold_up_no_other(store: Store, ada: Worker) -> None:
    await store.enqueue([start(version="9", priority=-5) for _ in range(300)] + [start("mine")])
    reply = await ada.exchange(slots=5)
    assert (ids(reply.claims), reply.more) == (["mine"], False)
