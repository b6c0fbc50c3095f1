"""Waits beside steps in flight: what the store says of them decides, also when it was not heard of in time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.fakes import FakeClock, claim
from perdure.engine.history import Inbox
from perdure.engine.parking import Waits
from perdure.model import Arrived, Wait, WaitFor
from perdure.stores.exchange import Seen, Watch

pytestmark = pytest.mark.anyio


class Watching:
    """An execution with a step in flight, and what it asks of the store."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.has_room = True
        self.clock = FakeClock()
        self.parked = 0
        self.put_away = asyncio.Event()
        self.execution: Any = SimpleNamespace(
            runtime=SimpleNamespace(loop=asyncio.get_running_loop(), clock=self.clock, pump=self, stirred=lambda: None),
            claim=claim(),
            token=1,
            active=1,
            ending=False,
            over=False,
            cancelling=None,
            inbox=Inbox(claim(), cast(Any, None)),
            tasks=list[Any](),
            park=self.park,
            comeback=0.0,
            make_room=lambda: self.has_room,
        )
        self.waits = Waits(self.execution)

    def watch(self, watch: Watch) -> None:
        self.asked.append(watch.wait.key)

    def unwatch(self, token: int, key: str) -> None:
        if key in self.asked:
            self.asked.remove(key)

    def park(self, waits: list[Wait]) -> None:
        self.parked += 1
        self.put_away.set()

    async def begin(self, wait: Wait) -> asyncio.Task[Seen | None]:
        task = asyncio.ensure_future(self.waits.wait(wait))
        await turns()
        return task


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


SIGNAL = Wait("signal:go", WaitFor.SIGNAL, "go", 1000)
TIMER = Wait("sleep", WaitFor.TIMER, at=1000)


async def test_a_sleep_is_over_with_its_time() -> None:
    watching = Watching()
    waiting = await watching.begin(TIMER)
    watching.clock.alarms[0].ring()
    assert await waiting is None and watching.asked == []


async def test_of_a_wait_whose_time_is_over_the_store_is_asked_once_more() -> None:
    watching = Watching()
    waiting = await watching.begin(SIGNAL)
    assert watching.asked == ["signal:go"]
    watching.asked.clear()  # it was asked, and had nothing to tell; then the signal came, and nobody told of it
    watching.clock.alarms[0].ring()
    await turns()
    assert watching.asked == ["signal:go"] and not waiting.done()
    seen = Seen(1, 1, "signal:go", signal=Arrived(1, "go", "1"))
    watching.waits.saw(seen)
    assert await waiting == seen and watching.asked == []


async def test_it_gives_up_when_the_store_says_that_it_is_late() -> None:
    watching = Watching()
    waiting = await watching.begin(SIGNAL)
    watching.clock.alarms[0].ring()
    late = Seen(1, 1, "signal:go")
    watching.waits.saw(late)
    assert await waiting == late


async def test_a_run_is_not_put_away_while_the_store_is_asked() -> None:
    watching = Watching()
    waiting = await watching.begin(SIGNAL)
    watching.clock.alarms[0].ring()
    watching.execution.active = 0
    watching.waits.consider_parking()
    await turns()
    assert watching.parked == 0
    watching.waits.saw(Seen(1, 1, "signal:go"))
    await waiting
    second = await watching.begin(SIGNAL)
    assert watching.parked == 1
    second.cancel()
    await turns()


async def test_a_run_with_much_behind_it_stays_for_as_long_as_it_took_to_come_back() -> None:
    watching = Watching()
    watching.execution.active, watching.execution.comeback = 0, 3600.0
    waiting, other = await watching.begin(SIGNAL), await watching.begin(Wait("run:a", WaitFor.RUN, "a"))
    assert sorted(watching.asked) == ["run:a", "signal:go"] and watching.waits.staying
    assert not watching.parked
    watching.waits.saw(Seen(1, 1, "run:a", missing=True))
    await other
    await turns()
    assert watching.asked == ["signal:go"] and watching.waits.staying and not watching.parked
    watching.execution.comeback = 0.001
    watching.waits.consider_parking()
    await watching.put_away.wait()
    assert not waiting.done()


async def test_it_is_put_away_at_once_where_it_would_be_in_the_way() -> None:
    watching = Watching()
    watching.execution.active, watching.execution.comeback, watching.has_room = 0, 3600.0, False
    await watching.begin(SIGNAL)
    await watching.put_away.wait()
    assert not watching.waits.staying and watching.asked == []
