"""Wake-ups: whoever subscribed is called when something may have changed, in its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from conformance.kit import DAY, URGENT, ManualClock, Worker, for_run, for_signal, message, of_queue, start, worker
from perdure.model import Limits, Rate, Schedule
from perdure.stores.base import Store, Topic
from perdure.stores.exchange import Claim, To

pytestmark = pytest.mark.anyio

PATIENCE = 20
"""Seconds until a wake-up counts as lost; it comes within milliseconds where all is well."""
LOOKS = 20


class Alarm:
    """Told of wake-ups; asserts that they come in the event loop that subscribed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rang = asyncio.Event()
        self.calls = 0

    def ring(self) -> None:
        assert asyncio.get_running_loop() is self._loop
        self.calls += 1
        self._rang.set()

    async def after(self, change: Callable[[], Awaitable[object]]) -> None:
        """Makes the change, and waits until it was heard of."""
        self._rang.clear()
        await change()
        async with asyncio.timeout(PATIENCE):
            await self._rang.wait()


@asynccontextmanager
async def subscribed(store: Store, topic: Topic) -> AsyncGenerator[Alarm]:
    alarm = Alarm()
    subscription = await store.subscribe(topic, alarm.ring)
    try:
        yield alarm
    finally:
        await subscription.close()


async def test_new_work_wakes_workers(store: Store) -> None:
    async with subscribed(store, Topic.WORK) as alarm:
        await alarm.after(lambda: store.enqueue([start()]))


async def test_a_delayed_start_wakes_workers_to_look_at_the_clock(store: Store, ada: Worker) -> None:
    async with subscribed(store, Topic.WORK) as alarm:
        await alarm.after(lambda: store.enqueue([start(delay=DAY)]))
        assert (await ada.exchange()).next_at is not None


@pytest.mark.parametrize("holds", ["rate", "schedule"])
async def test_who_only_looks_wakes_nobody(store: Store, ada: Worker, clock: ManualClock, holds: str) -> None:
    """Or all of them would wake each other as long as there is something to wait for."""
    if holds == "rate":
        await store.set_limits(of_queue(), Limits(rate=Rate(1, DAY, 1)), "ada")
        await store.enqueue([start() for _ in range(3)])
        await ada.claim_one()
    else:
        at = clock.now() + DAY
        await store.put_schedule(Schedule(name="s", at=at, start=start("")), at, declared=True)
    async with subscribed(store, Topic.WORK) as alarm:
        for _ in range(LOOKS):
            reply = await ada.exchange(slots=5)
            assert not reply.claims
            assert reply.next_at is not None
        # Wake-ups come in order: when this one is there, so are those before it, but for one. What was done before may
        # be heard of late; so would each look.
        await alarm.after(lambda: store.enqueue([start(queue=URGENT)]))
        await alarm.after(lambda: store.enqueue([start(queue=URGENT)]))
        assert alarm.calls < LOOKS / 2


async def test_a_signal_wakes_workers_for_the_parked_and_the_watching(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parked"), start("running")])
    parked, _ = await ada.claim(2)
    await ada.park(parked, for_signal())
    async with subscribed(store, Topic.WORK) as alarm:
        await alarm.after(lambda: store.signal(message("parked")))
        await alarm.after(lambda: store.signal(message("running")))


async def test_a_cancel_wakes_the_owner_and_those_who_wait_for_the_end(store: Store, ada: Worker) -> None:
    await store.enqueue([start("running"), start("queued")])
    await ada.claim_one()
    async with subscribed(store, Topic.WORK) as work, subscribed(store, Topic.ENDED) as ended:
        await work.after(lambda: store.cancel("running", "x"))
        await ended.after(lambda: store.cancel("queued", "x"))


async def test_who_asks_for_an_end_twice_hears_of_it_twice(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.settle(await ada.claim_one())
    async with subscribed(store, Topic.ENDED):
        for _ in range(3):
            assert [ended.id for ended in await store.ended(["r"])] == ["r"]


@pytest.mark.parametrize("to", [To.SUCCEEDED, To.FAILED, To.CANCELLED])
async def test_the_end_of_a_run_wakes_those_who_wait_for_results(store: Store, ada: Worker, to: To) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    async with subscribed(store, Topic.ENDED) as alarm:
        await alarm.after(lambda: ada.settle(claim, to, "1"))
        assert len(await store.ended(["r"])) == 1


@pytest.mark.parametrize("to", [To.RETRY, To.RELEASE, To.CONTINUE])
async def test_a_run_that_comes_back_wakes_workers(store: Store, ada: Worker, to: To) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    async with subscribed(store, Topic.WORK) as alarm:
        await alarm.after(lambda: ada.settle(claim, to, "1", delay=10))


async def test_the_end_of_a_child_wakes_workers_for_its_parent(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parent"), start("child")])
    parent, child = await ada.claim(2)
    await ada.park(parent, for_run("child"))
    async with subscribed(store, Topic.WORK) as alarm:
        await alarm.after(lambda: ada.settle(child, body="1"))


async def test_what_dead_and_retired_workers_leave_wakes_the_others(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start(), start()])
    await ada.claim_one()
    await bob.claim_one()
    async with subscribed(store, Topic.WORK) as alarm:
        await alarm.after(lambda: store.bury(ada.name))
        await alarm.after(lambda: store.retire(bob.id))


async def test_each_change_of_state_wakes_those_who_follow(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r")])
    claims: list[Claim] = []

    async def claim() -> None:
        claims.append(await ada.claim_one())

    async with subscribed(store, Topic.STATUS) as alarm:
        await alarm.after(claim)
        await alarm.after(lambda: ada.park(claims[-1], for_signal()))
        await alarm.after(lambda: store.signal(message("r")))
        await alarm.after(claim)
        await alarm.after(lambda: ada.settle(claims[-1], To.RETRY, '"x"', delay=10))
        clock.advance(ms=10)
        await alarm.after(ada.exchange)
        await alarm.after(claim)
        await alarm.after(lambda: store.cancel("r", "x"))
        await alarm.after(lambda: store.bury(ada.name))
    other = await worker(store)
    await other.settle(await other.claim_one(), To.CANCELLED, '"x"')
    async with subscribed(store, Topic.STATUS) as alarm:
        await alarm.after(lambda: store.retry("r"))
        await alarm.after(lambda: other.exchange(slots=1))
        await alarm.after(lambda: store.retire(other.id))


async def test_a_retried_run_wakes_workers(store: Store) -> None:
    await store.enqueue([start("r")])
    await store.cancel("r", "x")
    async with subscribed(store, Topic.WORK) as alarm:
        await alarm.after(lambda: store.retry("r"))


async def test_all_subscribers_are_woken(store: Store) -> None:
    async with subscribed(store, Topic.WORK) as first, subscribed(store, Topic.WORK) as second:
        await first.after(lambda: second.after(lambda: store.enqueue([start()])))


async def test_a_closed_subscription_is_quiet(store: Store) -> None:
    async with subscribed(store, Topic.WORK) as open_one:
        async with subscribed(store, Topic.WORK) as closed_one:
            pass
        await open_one.after(lambda: store.enqueue([start()]))
        assert closed_one.calls == 0


async def test_another_process_is_woken_for_work(store: Store, other: Store) -> None:
    async with subscribed(other, Topic.WORK) as alarm:
        for n in range(20):
            await alarm.after(lambda n=n: store.enqueue([start(f"r{n}")]))
            assert await other.load(f"r{n}") is not None


async def test_another_process_is_woken_for_results(store: Store, other: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    async with subscribed(other, Topic.ENDED) as alarm:
        await alarm.after(lambda: ada.settle(claim, body="1"))
        assert len(await other.ended(["r"])) == 1


async def test_another_process_is_woken_for_signals_and_cancels(store: Store, other: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    async with subscribed(other, Topic.WORK) as alarm:
        await alarm.after(lambda: store.signal(message("r")))
        await alarm.after(lambda: store.cancel("r", "x"))


async def test_a_store_serves_subscribers_of_several_event_loops(store: Store) -> None:
    async def elsewhere() -> None:
        async with subscribed(store, Topic.WORK) as alarm:
            await alarm.after(lambda: store.enqueue([start()]))

    async with subscribed(store, Topic.WORK) as alarm:
        await alarm.after(lambda: asyncio.to_thread(asyncio.run, elsewhere()))
