"""Limits of queues, workflows and the namespace: stored, revisioned, and kept to by every way into running."""

from __future__ import annotations

import asyncio

import pytest

from conformance.kit import (
    BILL,
    DEFAULT,
    EVERYTHING,
    LEASE,
    SHIP,
    URGENT,
    ManualClock,
    Worker,
    for_signal,
    ids,
    message,
    of_group,
    of_queue,
    of_workflow,
    record,
    settle,
    start,
    worker,
)
from perdure.errors import InvalidInput
from perdure.model import Limits, Rate, Scope, ScopeKind
from perdure.stores.base import Store, Topic
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio


async def fill(store: Store, count: int = 10, **more: str) -> None:
    await store.enqueue([start(f"{'/'.join(more.values())}{n}", **more) for n in range(count)])  # type: ignore[arg-type]


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_no_more_of_a_queue_run_than_its_limit(store: Store, ada: Worker, bob: Worker) -> None:
    await store.set_limits(of_queue(), Limits(running=3), "ada")
    await fill(store)
    await fill(store, queue=URGENT)
    reply = await ada.exchange(slots=2)
    assert len(reply.claims) == 2
    claims = await bob.claim()
    assert (
        sorted(claim.queue for claim in claims).count("default") + sum(c.queue == "default" for c in reply.claims) == 3
    )


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_runs_over_the_limit_are_not_more(store: Store, ada: Worker) -> None:
    await store.set_limits(of_queue(), Limits(running=3), "ada")
    await fill(store)
    reply = await ada.exchange(slots=10)
    assert (ids(reply.claims), reply.more, reply.next_at) == (["0", "1", "2"], False, None)
    assert (await record(store, "3")).held == "queue default is at its limit of 3"


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_what_settles_makes_room_at_once(store: Store, ada: Worker) -> None:
    await store.set_limits(of_queue(), Limits(running=2), "ada")
    await fill(store)
    claims = await ada.claim()
    reply = await ada.exchange(slots=9, settles=[settle(claim) for claim in claims])
    assert (ids(reply.claims), reply.more) == (["2", "3"], False)


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_a_full_scope_holds_up_no_other(store: Store, ada: Worker) -> None:
    await store.set_limits(of_workflow(SHIP), Limits(running=1), "ada")
    await fill(store, workflow=SHIP)
    await fill(store, 2, workflow=BILL)
    assert sorted(ids(await ada.claim())) == ["bill0", "bill1", "ship0"]
    assert (await record(store, "ship1")).held == "workflow ship is at its limit of 1"


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_all_limits_hold_together(store: Store, ada: Worker) -> None:
    await store.set_limits(EVERYTHING, Limits(running=4), "ada")
    await store.set_limits(of_queue(), Limits(running=3), "ada")
    await store.set_limits(of_workflow(SHIP), Limits(running=2), "ada")
    await fill(store, 5, workflow=SHIP)
    await fill(store, 5, workflow=BILL)
    await fill(store, 5, queue=URGENT, workflow=BILL)
    claims = await ada.claim()
    assert len(claims) == 4
    assert sum(claim.queue == "default" for claim in claims) <= 3
    assert sum(claim.workflow == SHIP for claim in claims) <= 2
    assert (await record(store, "ship4")).held == "the whole store is at its limit of 4"


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_what_waits_counts_against_nothing(store: Store, ada: Worker) -> None:
    await store.set_limits(of_queue(), Limits(running=1), "ada")
    await fill(store, 2)
    first = await ada.claim_one()
    await ada.park(first, for_signal())
    second = await ada.claim_one()
    await store.signal(message("0"))
    assert await ada.claim() == []
    await ada.settle(second)
    assert ids(await ada.claim()) == ["0"]


@pytest.mark.parametrize("to", [To.RETRY, To.RELEASE, To.CONTINUE])
@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_what_comes_again_has_no_way_around_a_limit(store: Store, ada: Worker, bob: Worker, to: To) -> None:
    await store.set_limits(of_queue(), Limits(running=1), "ada")
    await fill(store, 2)
    reply = await ada.exchange(slots=5, settles=[settle(await ada.claim_one(), to, '"x"')])
    assert ids(reply.claims) == ["0"]
    assert await bob.claim() == []


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_the_share_of_a_dead_worker_is_free_when_it_is_found(
    store: Store, ada: Worker, bob: Worker, clock: ManualClock
) -> None:
    await store.set_limits(of_queue(), Limits(running=2), "ada")
    await fill(store)
    await ada.claim()
    clock.advance(ms=LEASE)
    bob.renew()
    assert await bob.claim() == []
    assert (await store.reclaim()).count == 2
    assert ids(await bob.claim()) == ["0", "1"]


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_limits_change_while_runs_run(store: Store, ada: Worker) -> None:
    await fill(store)
    first = await ada.claim(4)
    await store.set_limits(of_queue(), Limits(running=2), "ada")
    await ada.exchange(settles=[settle(claim) for claim in first[:2]])
    assert await ada.claim() == []
    await store.set_limits(of_queue(), Limits(running=3), "ada")
    assert ids(await ada.claim()) == ["4"]
    await store.set_limits(of_queue(), Limits(), "ada")
    assert len(await ada.claim()) == 5


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_a_repeated_claim_does_not_go_over_a_limit(store: Store, ada: Worker) -> None:
    await store.set_limits(of_queue(), Limits(running=2), "ada")
    await fill(store)
    first = await ada.claim()
    reply = await ada.repeat()
    assert (ids(reply.claims), reply.more) == (ids(first), False)


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_a_limit_reaches_over_all_versions(store: Store) -> None:
    both = await worker(store, versions={SHIP: ["1", "2"]})
    await store.set_limits(of_workflow(SHIP), Limits(running=2), "ada")
    await store.enqueue([start(version=version) for version in ("", "1", "2")])
    assert len(await both.claim()) == 2


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_order_holds_within_a_limit(store: Store, ada: Worker) -> None:
    await store.set_limits(of_queue(), Limits(running=1), "ada")
    await store.enqueue([start(f"{p}:{n}", priority=p, workflow=w) for n, (p, w) in enumerate(PRIORITIES)])
    order: list[str] = []
    while claims := await ada.claim():
        order += ids(claims)
        await ada.settle(claims[0])
    assert order == [f"{p}:{n}" for n, (p, _) in sorted(enumerate(PRIORITIES), key=lambda each: (each[1][0], each[0]))]


PRIORITIES = [(2, SHIP), (0, BILL), (1, SHIP), (0, SHIP), (-1, BILL), (2, BILL)]


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_a_settle_that_makes_room_wakes_other_workers(store: Store, ada: Worker) -> None:
    await store.set_limits(of_queue(), Limits(running=1), "ada")
    await fill(store, 2)
    claim = await ada.claim_one()
    woken = asyncio.Event()
    subscription = await store.subscribe(Topic.WORK, woken.set)
    await ada.settle(claim)
    await asyncio.wait_for(woken.wait(), 5)
    await subscription.close()


# --- what is stored


async def test_each_change_is_a_revision(store: Store, clock: ManualClock) -> None:
    first = await store.set_limits(of_queue(), Limits(running=3), "ada")
    clock.advance(ms=5)
    second = await store.set_limits(of_queue(), Limits(running=4, rate=Rate(1, 1000, 2)), "bob")
    assert (first.limits, first.who, second.limits.running, second.who) == (Limits(running=3), "ada", 4, "bob")
    assert second.revision > first.revision
    assert second.at == first.at + 5
    latest, oldest = await store.revisions(of_queue())
    assert (latest.old, latest.new, latest.who) == (first.limits, second.limits, "bob")
    assert (oldest.old, oldest.new, oldest.who, oldest.revision) == (Limits(), first.limits, "ada", first.revision)
    assert await store.limits() == [second]


async def test_what_does_not_differ_is_no_revision(store: Store) -> None:
    first = await store.set_limits(of_queue(), Limits(running=3), "ada")
    assert await store.set_limits(of_queue(), Limits(running=3), "bob") == first
    assert len(await store.revisions()) == 1


async def test_what_code_declares_holds_only_where_nothing_was_set(store: Store) -> None:
    declared = await store.set_limits(of_queue(), Limits(running=3), "code", declared=True)
    assert declared.limits.running == 3
    await store.set_limits(of_queue(), Limits(running=5), "ada")
    assert (await store.set_limits(of_queue(), Limits(running=3), "code", declared=True)).limits.running == 5
    await store.set_limits(of_queue(), Limits(), "ada")
    assert (await store.set_limits(of_queue(), Limits(running=3), "code", declared=True)).limits == Limits()


async def test_a_pause_does_not_keep_code_from_declaring_limits(store: Store) -> None:
    await store.pause(of_queue(), "ada")
    record = await store.set_limits(of_queue(), Limits(running=3), "code", declared=True)
    assert (record.limits.running, record.paused) == (3, True)


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_limits_say_how_much_is_used(store: Store, ada: Worker) -> None:
    for scope in (EVERYTHING, of_queue(), of_workflow(SHIP), of_group("g"), of_queue(URGENT)):
        await store.set_limits(scope, Limits(running=5), "ada")
    await store.enqueue([start(group="g"), start(workflow=BILL), start(group="g")])
    assert len(await ada.claim()) == 3
    used = {record.scope: record.running for record in await store.limits()}
    assert used == {EVERYTHING: 3, of_queue(): 3, of_workflow(SHIP): 2, of_group("g"): 2, of_queue(URGENT): 0}


async def test_the_limit_of_a_group_is_for_each_queue_and_its_rate_for_all(store: Store, ada: Worker) -> None:
    record = await store.set_limits(of_group("g"), Limits(running=2), "ada")
    assert (record.running, record.queues) == (0, 1)
    await store.enqueue([start(group="g", queue=queue) for queue in (DEFAULT, URGENT) for _ in range(3)])
    assert len(await ada.claim()) == 4
    [record] = await store.limits()
    assert (record.running, record.queues) == (4, 2)
    await store.set_limits(of_group("g"), Limits(rate=Rate(1, 1000, 3)), "ada")
    await store.enqueue([start(group="g", queue=queue, workflow=BILL) for queue in (DEFAULT, URGENT)])
    await store.set_limits(of_group("g"), Limits(running=9, rate=Rate(1, 1000, 3)), "ada")
    assert len(await ada.claim()) == 3


@pytest.mark.parametrize(
    "limits",
    [Limits(running=0), Limits(running=-1), *(Limits(rate=Rate(*bad)) for bad in [(0, 1, 1), (1, 0, 1), (1, 1, 0)])],
)
async def test_limits_that_can_not_be_are_refused(store: Store, limits: Limits) -> None:
    with pytest.raises(InvalidInput):
        await store.set_limits(of_queue(), limits, "ada")
    assert await store.limits() == []


@pytest.mark.parametrize("scope", [Scope(ScopeKind.QUEUE), Scope(ScopeKind.NAMESPACE, "x"), Scope(ScopeKind.GROUP)])
async def test_scopes_that_can_not_be_are_refused(store: Store, scope: Scope) -> None:
    with pytest.raises(InvalidInput):
        await store.set_limits(scope, Limits(running=1), "ada")


# --- many at once


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_a_limit_holds_for_many_workers_while_it_changes(store: Store) -> None:
    """Whatever the interleaving, no more are running than the highest limit that ever held."""
    await store.set_limits(of_queue(), Limits(running=4), "ada")
    await fill(store, 150)
    running: set[str] = set()
    left = 150

    async def work(each: Worker) -> None:
        nonlocal left
        while left:
            for claim in await each.claim(3):
                running.add(claim.id)
                assert len(running) <= 4
                await asyncio.sleep(0)
                running.discard(claim.id)
                await each.settle(claim)
                left -= 1

    async def change() -> None:
        while left:
            for limit in (1, 4, 2, 3):
                await store.set_limits(of_queue(), Limits(running=limit), "ada")
                await asyncio.sleep(0)

    await asyncio.gather(change(), *[work(await worker(store)) for _ in range(4)])
