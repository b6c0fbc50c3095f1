"""The thread that keeps a lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from engine.fakes import FakeClock
from perdure.engine.leases import LeaseThread
from perdure.errors import StoreUnavailable

GUARD = 30.0


class FakeKeeper:
    """Answers renewals in order (True when there are no more answers), and counts them."""

    def __init__(self, *answers: bool | Exception) -> None:
        self._answers = list(answers)
        self._renewed = threading.Semaphore(0)
        self.closed = threading.Event()

    def renew(self) -> bool:
        answer = self._answers.pop(0) if self._answers else True
        self._renewed.release()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed.set()

    def renewed(self, times: int) -> bool:
        return all(self._renewed.acquire(timeout=GUARD) for _ in range(times))


def keep(
    keeper: FakeKeeper,
    gone: Callable[[], object] = lambda: None,
    alive: Callable[[], bool] = lambda: True,
    lease: int = 3,
    clock: FakeClock | None = None,
) -> LeaseThread:
    return LeaseThread(keeper, lease, gone, clock=clock or FakeClock(), since=0, alive=alive)


def test_a_lease_is_renewed_until_it_is_stopped() -> None:
    keeper = FakeKeeper()
    thread = keep(keeper)
    assert keeper.renewed(5)
    thread.stop()
    assert keeper.closed.wait(GUARD)


def test_an_incarnation_that_is_gone_is_told_of_once_and_not_renewed() -> None:
    keeper, told = FakeKeeper(True, False), threading.Semaphore(0)
    keep(keeper, told.release)
    assert told.acquire(timeout=GUARD)
    assert keeper.closed.wait(GUARD)
    assert not told.acquire(blocking=False)


def test_a_worker_that_stops_is_not_told_that_it_is_gone() -> None:
    told: list[str] = []

    class Retired(FakeKeeper):
        def renew(self) -> bool:
            thread.stop()  # the worker has left in good order while the renewal was under way
            return False

    keeper = Retired()
    ready = threading.Event()

    def alive() -> bool:
        return ready.wait(GUARD)

    thread = keep(keeper, lambda: told.append("gone"), alive)
    ready.set()
    assert keeper.closed.wait(GUARD)
    assert told == []


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OSError("no such device"), RuntimeError("what?")])
def test_an_error_is_followed_by_another_try(error: Exception) -> None:
    keeper = FakeKeeper(error, error, True)
    thread = keep(keeper)
    assert keeper.renewed(4)
    assert not keeper.closed.is_set()
    thread.stop()
    assert keeper.closed.wait(GUARD)


def test_it_ends_with_the_event_loop_that_it_stands_for() -> None:
    keeper, alive = FakeKeeper(), threading.Event()
    alive.set()
    keep(keeper, alive=alive.is_set)
    assert keeper.renewed(3)
    alive.clear()
    assert keeper.closed.wait(GUARD)


def test_a_lease_of_a_hundred_years_can_be_waited_for() -> None:
    keeper = FakeKeeper()
    thread = keep(keeper, lease=3_000_000_000_000)
    thread.stop()
    assert keeper.closed.wait(GUARD)


@pytest.mark.anyio
async def test_a_lease_is_certain_for_as_long_as_it_lasts_from_when_it_was_asked_for() -> None:
    keeper, clock = FakeKeeper(), FakeClock()
    lease = keep(keeper, lease=100_000, clock=clock)  # The thread waits for longer than this test lasts.
    clock.time = 99_999
    assert lease.certain
    clock.time = 100_000
    assert not lease.certain
    async with asyncio.timeout(GUARD):
        await asyncio.gather(lease.renewed(), lease.renewed())
    clock.time = 199_999
    assert lease.certain
    clock.time = 200_000
    assert not lease.certain
    lease.stop()
    assert keeper.closed.wait(GUARD)


@pytest.mark.anyio
async def test_a_lease_that_has_ended_is_not_renewed() -> None:
    clock, gone, loop = FakeClock(), asyncio.Event(), asyncio.get_running_loop()
    lease = keep(FakeKeeper(False), lambda: loop.call_soon_threadsafe(gone.set), lease=100_000, clock=clock)
    clock.time = 100_000
    renewed = lease.renewed()
    async with asyncio.timeout(GUARD):
        await gone.wait()
    assert not renewed.done()
    assert not lease.certain
