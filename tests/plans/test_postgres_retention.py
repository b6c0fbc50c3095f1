"""Prune on PostgreSQL does not look at what it passed over: children of parents that live, and runs of batches."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from conformance.kit import DAY, ManualClock, for_signal, message, start, worker
from perdure.model import Retention
from perdure.stores import open_store
from perdure.stores.base import Store
from plans.kit import Listener, explain_all, listener
from servers.postgres import postgres, store_schema

pytestmark = pytest.mark.anyio

__all__ = ["listener"]

PARENTS = 3_000
LOOK = 300
"""The most pages that any statement may look at: all of them together have some thousand."""

_PARKED = """
SET search_path = perdure;
INSERT INTO lane (queue, workflow, version) VALUES ('default', 'ship', '');
INSERT INTO run (seq, id, lane, priority, max_crashes, created_at, ties, input)
SELECT -i, 'p' || i, 1, 0, 5, 0, 0, 'null' FROM generate_series(1, {parents}) AS i;
INSERT INTO live (seq, place, lane, priority, max_crashes, ties, state)
SELECT -i, -i, 1, 0, 5, 0, 'waiting' FROM generate_series(1, {parents}) AS i;
INSERT INTO run (seq, id, lane, priority, max_crashes, created_at, ties, input, parent)
SELECT -1000000 - i, 'c' || i, 1, 0, 5, 0, 1, 'null', 'p' || i FROM generate_series(1, {parents}) AS i;
INSERT INTO ended (seq, finish, finished_at, place, lane, attempt, crashes, ties, state, body)
SELECT -1000000 - i, i, 1, 1, 1, 1, 0, 1, 'succeeded', '1' FROM generate_series(1, {parents}) AS i;
INSERT INTO tally (lane, shard, runs, succeeded) VALUES (1, 0, 2 * {parents}, {parents});
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(listener: Listener, clock: ManualClock) -> AsyncIterator[Store]:
    """With parents that are parked, each of one child that has ended."""
    server = postgres()
    url = server.database()
    server.run(store_schema(url), url=url)
    server.run(_PARKED.format(parents=PARENTS), url=url)
    explain_all(server, url)
    store = open_store(url, now=clock.now)
    await store.open()
    yield store
    await store.close()
    server.drop(url)


async def test_what_was_passed_over_is_not_looked_at_again(
    store: Store, listener: Listener, clock: ManualClock
) -> None:
    ada = await worker(store)
    policies = [Retention(age=1)]
    await store.enqueue([start("p")])
    parent = await ada.claim_one()
    await store.enqueue([start("c", parent="p")])
    await ada.settle(await ada.claim_one(), body="1")
    await ada.park(parent, for_signal())
    clock.advance(ms=DAY)
    while await store.prune(policies, limit=PARENTS):
        pass
    with listener.listening() as plans:
        assert await store.prune(policies, limit=PARENTS) == 0
    assert plans
    looked = max((plan.pages, plan.query) for plan in plans)
    assert looked[0] <= LOOK, looked
    await store.signal(message("p"))
    await ada.settle(await ada.claim_one(), body="1")
    clock.advance(ms=DAY)
    with listener.listening() as plans:
        assert [await store.prune(policies, limit=10) for _ in range(2)] == [2, 0]
    looked = max((plan.pages, plan.query) for plan in plans)
    assert looked[0] <= LOOK, looked
