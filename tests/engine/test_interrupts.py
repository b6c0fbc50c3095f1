"""Ctrl-C ends the program; a `KeyboardInterrupt` of the user's own fails a run."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from perdure.engine.interrupts import is_ctrl_c


def caught(code: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as error:  # noqa: PT011
        code()
    return error.value


def raised() -> None:
    raise KeyboardInterrupt


def raised_anew() -> None:
    try:
        raised()
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("enough") from error


def spinning() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass


def asleep() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(60)


def in_a_loop() -> None:
    """The first one cancels what runs, the second one is meant."""

    async def main() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass

    asyncio.run(main())


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of a plain Python program."""
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGALRM, alarm)


@pytest.mark.parametrize("code", [spinning, asleep, in_a_loop])
def test_what_the_signal_raises_is_ctrl_c(code: Callable[[], None]) -> None:
    error = caught(code)
    assert isinstance(error, KeyboardInterrupt) and is_ctrl_c(error)


@pytest.mark.parametrize("code", [raised, raised_anew, lambda: exit(1), lambda: 1 / 0])
def test_what_code_raises_is_none(code: Callable[[], object]) -> None:
    assert not is_ctrl_c(caught(code))
