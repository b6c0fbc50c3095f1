from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidInput
from perdure.retry import Retry

retries = st.builds(
    Retry,
    attempts=st.none() | st.integers(1, 100),
    delay=st.floats(0, 1e6) | st.integers(0, 10**6) | st.timedeltas(timedelta(0), timedelta(days=30)),
    factor=st.floats(1, 1e300) | st.integers(1, 1000),
    max_delay=st.floats(0, 1e6) | st.timedeltas(timedelta(0), timedelta(days=3000)),
    jitter=st.floats(0, 1),
)
randoms = st.floats(0, 1, exclude_max=True)


@given(retries, st.integers(1, 10_000), randoms)
def test_delay_is_within_its_bounds(retry: Retry, attempt: int, random: float) -> None:
    longest = retry.max_delay if isinstance(retry.max_delay, timedelta) else timedelta(seconds=retry.max_delay)
    delay = retry.delay_after(attempt, random)
    assert isinstance(delay, int)
    assert 0 <= delay <= longest.total_seconds() * 1000


@given(retries, st.integers(1, 9_999))
def test_delays_do_not_shrink_without_chance(retry: Retry, attempt: int) -> None:
    assert retry.delay_after(attempt, 0) <= retry.delay_after(attempt + 1, 0)


@given(retries, st.integers(1, 1000), randoms, randoms)
def test_chance_only_takes_off_its_share(retry: Retry, attempt: int, one: float, other: float) -> None:
    longest = retry.delay_after(attempt, 0)
    assert longest * (1 - retry.jitter) - 2 <= retry.delay_after(attempt, one) <= longest
    low, high = sorted((one, other))
    assert retry.delay_after(attempt, low) >= retry.delay_after(attempt, high)


@given(st.integers(1, 50), st.integers(1, 100))
def test_attempts_count_the_first(attempts: int, attempt: int) -> None:
    assert Retry(attempts=attempts).allows(attempt) == (attempt < attempts)
    assert Retry(attempts=None).allows(attempt)


def test_delays_double_up_to_the_longest() -> None:
    retry = Retry(delay=1, factor=2, max_delay=timedelta(seconds=10), jitter=0)
    assert [retry.delay_after(n, 0.7) for n in range(1, 7)] == [1000, 2000, 4000, 8000, 10_000, 10_000]
    assert retry.delay_after(10_000, 0.7) == 10_000
    assert Retry(delay=0, factor=10).delay_after(10_000, 0.5) == 0


def test_covers() -> None:
    retry = Retry(on=(OSError, ValueError), give_up_on=FileNotFoundError)
    assert retry.covers(TimeoutError())
    assert retry.covers(UnicodeError())
    assert not retry.covers(FileNotFoundError())
    assert not retry.covers(KeyError())
    assert not Retry().covers(KeyboardInterrupt())


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"attempts": 1.5},
        {"attempts": True},
        {"delay": -1},
        {"delay": timedelta(seconds=-1)},
        {"delay": float("nan")},
        {"delay": "1s"},
        {"max_delay": float("inf")},
        {"max_delay": 1e12},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"jitter": 1.1},
        {"jitter": -0.1},
        {"on": BaseException},
        {"on": [ValueError]},
        {"on": ValueError()},
        {"give_up_on": (int,)},
        {"give_up_on": None},
    ],
)
def test_what_can_not_be_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Retry(**options)


def test_it_is_a_value() -> None:
    assert Retry(delay=2) == Retry(delay=2)
    assert len({Retry(), Retry(), Retry(attempts=None)}) == 2
