"""The queues at one moment."""

from __future__ import annotations

import pytest

from conformance.kit import (
    BILL,
    DAY,
    DEFAULT,
    LEASE,
    URGENT,
    ManualClock,
    Worker,
    for_signal,
    for_timer,
    of_group,
    of_queue,
    of_workflow,
    start,
    worker,
)
from perdure.model import HeldCount, Limits, QueueReport, Rate, Unserved
from perdure.stores.base import Store
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio


async def report(store: Store, queue: str = DEFAULT) -> QueueReport:
    return {each.queue: each for each in await store.queues()}[queue]


async def test_nothing_was_ever_there(store: Store) -> None:
    assert await store.queues() == []


async def test_a_queue_shows_what_is_in_it(store: Store, ada: Worker, clock: ManualClock) -> None:
    created = clock.now()
    await store.enqueue([start(f"r{n}", workflow=BILL if n % 2 else "ship") for n in range(9)])
    clock.advance(ms=5)
    await store.enqueue([start(delay=1000), start(queue=URGENT)])
    claims = [claim for claim in await ada.claim(7) if claim.queue == DEFAULT]
    await ada.park(claims[0], for_signal())
    await ada.park(claims[1], for_timer(clock.now() + 500))
    await ada.settle(claims[2], To.RETRY, '"x"', delay=700)
    await ada.settle(claims[3], To.FAILED, '"x"')
    shown = await report(store)
    assert (shown.ready, shown.oldest_ready_at) == (9 - len(claims), created)
    assert (shown.running, shown.scheduled, shown.waiting) == (len(claims) - 4, 2, 2)
    assert (shown.held, shown.paused, shown.limits, shown.ended_last_minute) == ([], False, Limits(), 1)


async def test_what_is_held_is_counted_by_reason(store: Store, clock: ManualClock) -> None:
    one = await worker(store, sessions=1)
    await store.set_limits(of_group("slow"), Limits(rate=Rate(1, 1000, 1)), "ada")
    await store.enqueue([start(group="g") for _ in range(5)] + [start(session="s") for _ in range(70)])
    await store.enqueue([start(group="slow", group_limit=2) for _ in range(3)])
    await store.enqueue([start(group="h")])
    stopped = await worker(store)
    claims = [*await stopped.claim()]
    for claim in claims:
        if claim.group == "h":
            await stopped.park(claim, for_timer(clock.now() + 1))
    await store.pause(of_group("h"), "ada")
    clock.advance(ms=1)
    await one.exchange()
    shown = await report(store)
    assert shown.held == [
        HeldCount("group", 5),
        HeldCount("group paused", 1),
        HeldCount("session", 6),
        HeldCount("rate", 1),
    ]
    assert (shown.ready, shown.running) == (64, 2)


async def test_pauses_and_limits_are_shown(store: Store) -> None:
    await store.set_limits(of_queue("mail"), Limits(running=3), "ada")
    await store.pause(of_queue("mail"), "ada")
    shown = await report(store, "mail")
    assert (shown.paused, shown.limits, shown.ready) == (True, Limits(running=3), 0)


async def test_what_a_pause_holds_is_not_ready(store: Store, clock: ManualClock) -> None:
    await store.enqueue([start(workflow=BILL) for _ in range(3)])
    await store.pause(of_workflow(BILL), "ada")
    shown = await report(store)
    assert (shown.ready, shown.oldest_ready_at, shown.held, shown.paused) == (0, None, [HeldCount("paused", 3)], False)
    created = clock.advance(ms=5)
    await store.enqueue([start(), start(workflow=BILL)])
    shown = await report(store)
    assert (shown.ready, shown.oldest_ready_at, shown.held) == (1, created, [HeldCount("paused", 4)])
    await store.pause(of_queue(), "ada")
    shown = await report(store)
    assert (shown.ready, shown.held, shown.paused) == (0, [HeldCount("paused", 5)], True)


@pytest.mark.one_partition("the order within a queue")
async def test_the_oldest_that_is_ready_is_found_whatever_its_priority(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    created = clock.now()
    for priority in (5, 0, 9, -3):
        await store.enqueue([start(priority=priority), start(priority=priority, workflow=BILL, queue=URGENT)])
        clock.advance(ms=10)
    assert (await report(store)).oldest_ready_at == (await report(store, URGENT)).oldest_ready_at == created
    for claim in await ada.claim(6):
        await ada.settle(claim)
    assert (await report(store)).oldest_ready_at == created + 20


async def test_what_no_live_worker_takes_is_told(store: Store, clock: ManualClock) -> None:
    created = clock.now()
    await store.enqueue([start(version="3"), start(version="3"), start(workflow=BILL)])
    shown = await report(store)
    # As long as nobody serves the queue at all they are ready: workers may be started by that number.
    assert (shown.ready, shown.oldest_ready_at, shown.held) == (3, created, [])
    assert sorted(shown.unserved, key=lambda each: each.runs) == [Unserved(BILL, "", 1), Unserved("ship", "3", 2)]
    await worker(store, workflows=["ship"], versions={"ship": ["4"]})
    shown = await report(store)
    assert (shown.ready, shown.oldest_ready_at, shown.held) == (0, None, [HeldCount("unserved", 3)])
    await worker(store, versions={"ship": ["3"]})
    assert ((await report(store)).ready, (await report(store)).unserved) == (3, [])
    clock.advance(ms=LEASE)
    assert sum(each.runs for each in (await report(store)).unserved) == 3


async def test_what_belongs_to_a_session_of_a_worker_is_held(store: Store) -> None:
    owner = await worker(store, sessions=1)
    await store.enqueue([start(session="s") for _ in range(3)])
    assert (await report(store)).ready == 3
    await owner.claim_one()
    shown = await report(store)
    assert (shown.ready, shown.held, shown.running) == (0, [HeldCount("session", 2)], 1)


@pytest.mark.one_partition("the limit of a queue, a workflow or the namespace")
async def test_limits_that_are_reached_are_told(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.set_limits(of_queue(), Limits(running=1), "ada")
    await store.set_limits(of_workflow(BILL), Limits(rate=Rate(1, DAY, 1)), "ada")
    await store.enqueue([start(queue=URGENT, workflow=BILL) for _ in range(2)] + [start(), start()])
    assert [(await report(store)).kept, (await report(store, URGENT)).kept] == [[], []]
    await ada.claim()
    assert (await report(store)).kept == ["queue default is at its limit of 1"]
    [told] = (await report(store, URGENT)).kept
    assert told.startswith("workflow bill may begin its next run at ") and told.endswith(" (1/day)")
    assert ((await report(store)).ready, (await report(store, URGENT)).ready) == (1, 1)


async def test_what_ended_is_counted_for_a_minute(store: Store, ada: Worker, clock: ManualClock) -> None:
    for n in range(40):
        await store.enqueue([start(f"r{n}", workflow=BILL if n % 3 else "ship")])
        await ada.settle(await ada.claim_one(), [To.SUCCEEDED, To.FAILED, To.CANCELLED][n % 3], '"x"')
        clock.advance(ms=3_000)
    assert (await report(store)).ended_last_minute == 19
    clock.advance(ms=57_000)
    assert (await report(store)).ended_last_minute == 0
