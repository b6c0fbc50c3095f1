"""The store's time in a process, and how durations and moments become numbers."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.clock import StoreClock, epoch_millis, millis, moment
from perdure.errors import InvalidInput

CENTURY = 3_200_000_000


@given(st.floats(0, CENTURY))
def test_seconds_are_rounded_up_to_the_next_millisecond(seconds: float) -> None:
    result = millis(seconds, "it")
    assert result >= seconds * 1000
    assert result - seconds * 1000 <= 1


@given(st.timedeltas(timedelta(0), timedelta(days=36_500)))
def test_a_timedelta_is_never_cut_short(duration: timedelta) -> None:
    assert timedelta(milliseconds=millis(duration, "it")) >= duration - timedelta(microseconds=1)
    assert timedelta(milliseconds=millis(duration, "it")) - duration < timedelta(milliseconds=1, microseconds=1)


@given(st.integers(0, CENTURY))
def test_whole_seconds_are_exact(seconds: int) -> None:
    assert millis(seconds, "it") == seconds * 1000


@pytest.mark.parametrize("wrong", [-1, -0.001, math.nan, math.inf, timedelta(seconds=-1), 4e9, "1", None, True])
def test_durations_that_cannot_be_are_refused_and_named(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="the delay must"):
        millis(wrong, "the delay")  # pyright: ignore[reportArgumentType]


@given(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_a_moment_is_the_same_in_every_zone(naive: datetime, minutes: int) -> None:
    here = naive.replace(tzinfo=UTC)
    there = here.astimezone(timezone(timedelta(minutes=minutes)))
    assert epoch_millis(here, "it") == epoch_millis(there, "it")
    assert abs(moment(epoch_millis(here, "it")) - here) <= timedelta(milliseconds=1)


@given(st.integers(0, 7_000_000_000_000))
def test_a_moment_survives_the_way_there_and_back(at: int) -> None:
    assert epoch_millis(moment(at), "it") == at


def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(InvalidInput, match="has no time zone"):
        epoch_millis(datetime(2030, 1, 1), "at")
    with pytest.raises(InvalidInput, match="must be a datetime"):
        epoch_millis(17, "at")  # pyright: ignore[reportArgumentType]


class Machine:
    """The machine's own clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.seconds)


def test_the_store_s_time_goes_on_by_a_clock_that_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, clock = Machine(monkeypatch), StoreClock()
    clock.saw(5_000_000)
    assert clock.now() == 5_000_000
    machine.seconds += 1.5
    assert clock.now() == 5_001_500


def test_a_store_whose_clock_was_set_is_followed_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StoreClock()
    Machine(monkeypatch)
    for now in (5_000_000, 9_000_000, 1_000_000):
        clock.saw(now)
        assert clock.now() == now


def test_it_does_not_go_back_when_a_reply_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, clock = Machine(monkeypatch), StoreClock()
    clock.saw(5_000_000)
    machine.seconds += 0.010
    assert clock.now() == 5_000_010
    clock.saw(5_000_004)  # six milliseconds under way
    assert clock.now() == 5_000_010
    machine.seconds += 0.008
    assert clock.now() == 5_000_012


@given(st.integers(0, 10**13), st.floats(0, 1e6), st.floats(0, 1e4))
def test_it_is_never_ahead_of_the_store(now: int, origin: float, passed: float) -> None:
    machine = origin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: machine)
        clock = StoreClock()
        clock.saw(now)
        machine += passed
        assert clock.now() <= now + passed * 1000 + 0.01


def test_alarms_ring_when_due_and_not_when_cancelled() -> None:
    async def main() -> list[str]:
        clock, rang = StoreClock(), list[str]()
        clock.saw(1_000_000)
        done = asyncio.Event()
        clock.call_at(1_000_000 - 5, lambda: rang.append("past"))
        clock.call_at(clock.now() + 5, lambda: rang.append("cancelled")).cancel()
        due = clock.now() + 20

        def ring() -> None:
            rang.append(f"due {clock.now() >= due}")
            done.set()

        clock.call_at(due, ring)
        async with asyncio.timeout(30):
            await done.wait()
        return rang

    assert asyncio.run(main()) == ["past", "due True"]
