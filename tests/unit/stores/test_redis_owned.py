"""A worker says from time to time what it has: what Redis believes to be its besides is free for others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.model import Start, State
from perdure.stores import open_store
from perdure.stores.base import Registration, Store, Topic
from perdure.stores.exchange import Exchange, Settle, To
from servers.redis import redis

pytestmark = pytest.mark.anyio

WORKER = Registration(
    name="w", host="", pid=0, queues=["default"], workflows=["leaf"], concurrency=9, lease=600_000, sessions=0
)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = open_store(redis().namespace())
    await made.open()
    yield made
    await made.close()


async def test_what_it_does_not_name_is_given_back_and_not_counted(store: Store) -> None:
    """As when the settle of it was lost in a failover: the worker has forgotten it."""
    await store.enqueue(
        [Start(f"r{number}", "leaf", "default", "[1]", group="g", group_limit=3) for number in range(3)]
    )
    worker = await store.register(WORKER)
    first, second, lost = (await store.exchange(Exchange(worker, 1, slots=3))).claims
    settles = [Settle(first.ref, first.token, To.SUCCEEDED, "7")]
    said = Exchange(worker, 2, settles=settles, owned=[(second.ref, second.token)])
    assert (await store.exchange(said)).refused == []
    states = {run_id: record.state for run_id in ("r0", "r1", "r2") if (record := await store.load(run_id))}
    assert states == {"r0": State.SUCCEEDED, "r1": State.RUNNING, "r2": State.QUEUED}
    [again] = (await store.exchange(Exchange(worker, 3, slots=3))).claims
    assert (again.id, again.attempt, again.crashes, again.cut_off) == (lost.id, 1, 0, False)
    late = Exchange(worker, 4, settles=[Settle(lost.ref, lost.token, To.SUCCEEDED, "7")])
    assert (await store.exchange(late)).refused == [lost.token]


async def test_nothing_is_given_back_where_it_says_nothing_or_says_it_again(store: Store) -> None:
    await store.enqueue([Start("r", "leaf", "default", "[1]")])
    worker = await store.register(WORKER)
    said = Exchange(worker, 1, slots=1, owned=[])
    [claim] = (await store.exchange(said)).claims
    said.repeated = True
    assert [each.token for each in (await store.exchange(said)).claims] == [claim.token]
    await store.exchange(Exchange(worker, 2))
    await store.exchange(Exchange(worker, 3, owned=[(claim.ref, claim.token)]))
    record = await store.load("r")
    assert record is not None and record.state is State.RUNNING


async def test_what_is_pushed_is_on_its_way(store: Store) -> None:
    subscription = await store.subscribe(Topic.WORK, lambda: None)
    worker = await store.register(WORKER)
    await store.exchange(Exchange(worker, 1, slots=1, owned=[]))
    await store.enqueue([Start("r", "leaf", "default", "[1]")])
    record = await store.load("r")
    assert record is not None and record.state is State.RUNNING, "it was not pushed"
    [claim] = (await store.exchange(Exchange(worker, 2, slots=1, owned=[]))).claims
    assert (claim.id, claim.attempt) == ("r", 1)
    await store.exchange(Exchange(worker, 3, owned=[(claim.ref, claim.token)]))
    done = Exchange(worker, 4, settles=[Settle(claim.ref, claim.token, To.SUCCEEDED, "7")], owned=[])
    assert (await store.exchange(done)).refused == []
    assert [each.state for each in await store.ended(["r"])] == [State.SUCCEEDED]
    await subscription.close()
