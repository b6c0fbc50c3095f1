"""When a worker looks for dead ones."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest

from engine.fakes import FakeClock
from perdure.engine.leases import LeaseThread
from perdure.engine.reclaiming import LONGEST_PAUSE, PAUSE, SPREAD, Reclaiming
from perdure.errors import StoreUnavailable
from perdure.model import Millis
from perdure.stores.base import Reclaimed, Store

pytestmark = pytest.mark.anyio

NOON: Millis = 1_700_000_000_000


class FakeStore:
    """Answers looks in order."""

    def __init__(self) -> None:
        self.answers: list[Reclaimed | Exception] = []
        self.asked: list[Millis | None] = []

    async def reclaim(self, asked: Millis | None = None) -> Reclaimed:
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeLease:
    """One that is renewed as soon as that is asked for."""

    def __init__(self) -> None:
        self.certain = True
        self.renewals = 0

    def renewed(self) -> asyncio.Future[None]:
        self.renewals += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future


class Scene:
    def __init__(self, lease: Millis = 10_000) -> None:
        self.clock = FakeClock()
        self.clock.time = NOON
        self.store = FakeStore()
        self.lease = FakeLease()
        self.reclaiming = Reclaiming(cast(Store, self.store), self.clock, lease)

    async def look(self, answer: Reclaimed | Exception) -> int:
        self.store.answers.append(answer)
        return await self.reclaiming.look(cast(LeaseThread, self.lease))

    async def pause(self, answer: Reclaimed | Exception) -> float:
        await self.look(answer)
        return self.reclaiming.pause()


@pytest.fixture(autouse=True)
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is random is the most that it can be."""
    monkeypatch.setattr(random, "uniform", max)


@pytest.mark.parametrize(("lease", "seconds"), [(60_000, LONGEST_PAUSE), (6_000, 2.0), (1_000, PAUSE), (1, PAUSE)])
async def test_a_fleet_that_lives_is_looked_at_seldom(lease: Millis, seconds: float) -> None:
    scene = Scene(lease)
    assert await scene.pause(Reclaimed(0, NOON + 50_000)) == seconds
    assert await scene.pause(Reclaimed(0, None)) == seconds


async def test_the_next_look_is_when_the_next_lease_ends_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    assert await scene.pause(Reclaimed(0, NOON + 1_000)) == 1.0 + SPREAD
    scene.clock.time += 400
    assert await scene.pause(Reclaimed(0, NOON + 1_000)) == 0.6 + SPREAD
    monkeypatch.setattr(random, "uniform", min)
    assert scene.reclaiming.pause() == 0.6


async def test_it_looks_soon_at_first_and_while_there_is_something_to_take() -> None:
    scene = Scene()
    assert scene.reclaiming.pause() == PAUSE
    assert await scene.look(Reclaimed(3, NOON + 9_000)) == 3
    assert scene.reclaiming.pause() == PAUSE
    # One that is at an exchange is left for the next time.
    assert await scene.pause(Reclaimed(0, NOON - 1)) == PAUSE
    assert await scene.pause(Reclaimed(0, NOON + 9_000)) == LONGEST_PAUSE


async def test_after_a_look_that_failed_it_renews_its_own_lease_and_looks_soon() -> None:
    scene = Scene()
    assert await scene.pause(Reclaimed(0, NOON + 9_000)) == LONGEST_PAUSE
    with pytest.raises(StoreUnavailable):
        await scene.look(StoreUnavailable("away"))
    assert scene.reclaiming.pause() == PAUSE
    assert await scene.reclaiming.look(cast(LeaseThread, scene.lease)) == 0
    assert (scene.lease.renewals, len(scene.store.asked)) == (1, 2)
    assert await scene.pause(Reclaimed(0, NOON + 9_000)) == LONGEST_PAUSE


async def test_who_stood_still_renews_its_own_lease_first() -> None:
    scene = Scene()
    scene.lease.certain = False
    assert await scene.reclaiming.look(cast(LeaseThread, scene.lease)) == 0
    assert (scene.lease.renewals, scene.store.asked) == (1, [])
    assert scene.reclaiming.pause() == PAUSE


async def test_the_store_is_told_when_it_was_asked_but_not_after_it_was_late() -> None:
    """One that is late each time is slow, and did not hang."""
    scene = Scene()
    for answer in (Reclaimed(0, NOON, late=True), Reclaimed(1, NOON), Reclaimed(0, NOON)):
        assert await scene.pause(answer) == PAUSE
    assert scene.store.asked == [NOON, None, NOON]


async def test_a_look_that_failed_says_nothing_of_whether_the_next_one_is_late() -> None:
    scene = Scene()
    await scene.look(Reclaimed(0, NOON, late=True))
    with pytest.raises(StoreUnavailable):
        await scene.look(StoreUnavailable("away"))
    await scene.reclaiming.look(cast(LeaseThread, scene.lease))
    await scene.look(Reclaimed(0, NOON))
    assert scene.store.asked == [NOON, None, NOON]


async def test_a_store_whose_clock_jumps_is_looked_at_as_often() -> None:
    scene = Scene()
    await scene.look(Reclaimed(0, NOON + 1_000))
    scene.clock.time = NOON - 3_600_000
    assert scene.reclaiming.pause() == LONGEST_PAUSE
    scene.clock.time = NOON + 3_600_000
    assert scene.reclaiming.pause() == PAUSE
