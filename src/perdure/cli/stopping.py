"""How a process that serves is asked to stop, and how it is made sure that it does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_HURRY = 20.0
"""Seconds that a stop at once may take: longer than a parent waits for its children then."""

LAST_MOMENTS = 3.0
"""Seconds for what Python does at its end: exit handlers, threads that are not daemons."""


class Stop:
    """Requests to stop: a first one for a graceful stop, a second one to stop at once, a third one ends the process.

    They come as signals. A process with a `lifeline` is also asked, once, when that ends.
    """

    def __init__(self, limit: float | None) -> None:
        """`limit`: seconds after a first request in which the process has to end, or is ended; None for no limit."""
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._requests = 0

    def listen(self, lifeline: int | None) -> None:
        """Begins to take requests. In the main thread. `lifeline`: a file descriptor (see `take_lifeline`)."""
        for number in _SIGNALS:
            # Not `loop.add_signal_handler`: that one is called by the loop, which the user's code may be blocking.
            signal.signal(number, self._signalled)
        if lifeline is not None:
            threading.Thread(target=self._hold_on, args=[lifeline], name="perdure-lifeline", daemon=True).start()

    def _signalled(self, number: int, _: FrameType | None) -> None:
        self._requests += 1
        if self._requests == 1:
            self._ask()
        elif self._requests == 2:
            self._tell(self.hurried)
            end_within(_HURRY, 128 + number)
        else:
            _end(128 + number)

    def _hold_on(self, lifeline: int) -> None:
        try:
            while os.read(lifeline, 4096):
                pass
        except OSError:
            pass
        if self._requests == 0:
            self._requests = 1
            self._ask()

    def _ask(self) -> None:
        self._tell(self.asked)
        if self._limit is not None:
            end_within(self._limit, 1)

    def _tell(self, event: asyncio.Event) -> None:
        try:
            self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            pass  # The loop is closed: the process is ending.


def take_lifeline() -> int:
    """Standard input, for this process alone: those that the user's code starts would wait for something to read."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def end_within(seconds: float, code: int) -> None:
    """Ends the process in that time if it is still there, whatever its threads do."""

    def wait() -> None:
        time.sleep(seconds)
        _end(code)

    threading.Thread(target=wait, name="perdure-end", daemon=True).start()


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)
