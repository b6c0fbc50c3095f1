"""What runs tell of their own progress."""

from __future__ import annotations

import asyncio

import pytest

from conformance.kit import Worker, record, settle, start
from perdure.model import State
from perdure.stores.base import Store, Topic
from perdure.stores.exchange import To, Told

pytestmark = pytest.mark.anyio


async def test_the_latest_status_is_kept_and_outlives_the_run(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r"), start("s")])
    one, other = await ada.claim(2)
    assert (await record(store, "r")).status is None
    await ada.exchange(told=[Told(one.ref, one.token, '{"done":1}'), Told(other.ref, other.token, '"hi"')])
    await ada.exchange(told=[Told(one.ref, one.token, '{"done":2}'), Told(one.ref, one.token, '{"done":3}')])
    assert ((await record(store, "r")).status, (await record(store, "s")).status) == ('{"done":3}', '"hi"')
    await ada.settle(one, body="1")
    assert (await record(store, "r")).status == '{"done":3}'


async def test_a_status_may_come_with_the_settle(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    reply = await ada.exchange(told=[Told(claim.ref, claim.token, '"all done"')], settles=[settle(claim, body="1")])
    assert reply.refused == [] and (await ada.repeat()).refused == []
    run = await record(store, "r")
    assert (run.state, run.status) == (State.SUCCEEDED, '"all done"')


async def test_a_late_worker_tells_nothing(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    stale = await ada.claim_one()
    await store.bury(ada.name)
    reply = await ada.exchange(told=[Told(stale.ref, stale.token, '"late"')])
    assert reply.refused == [stale.token]
    claim = await bob.claim_one()
    await bob.settle(claim, To.RETRY, '"x"')
    assert (await bob.exchange(told=[Told(claim.ref, claim.token, '"late"')])).refused == [claim.token]
    assert (await record(store, "r")).status is None


async def test_those_who_follow_are_woken_and_others_are_not(store: Store, ada: Worker) -> None:
    woken, ended = asyncio.Event(), asyncio.Event()
    follower = await store.subscribe(Topic.STATUS, woken.set)
    waiter = await store.subscribe(Topic.ENDED, ended.set)
    await store.enqueue([start("r")])
    assert not woken.is_set()
    claim = await ada.claim_one()
    await asyncio.wait_for(woken.wait(), 5)
    woken.clear()
    await ada.exchange(told=[Told(claim.ref, claim.token, "1")])
    await asyncio.wait_for(woken.wait(), 5)
    assert not ended.is_set()
    await follower.close()
    await waiter.close()


async def test_a_status_from_a_process_wakes_followers_in_another(store: Store, other: Store, ada: Worker) -> None:
    woken = asyncio.Event()
    follower = await other.subscribe(Topic.STATUS, woken.set)
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.exchange(told=[Told(claim.ref, claim.token, "1")])
    await asyncio.wait_for(woken.wait(), 5)
    assert (await record(other, "r")).status == "1"
    await follower.close()
