"""Threads for sync workflows and steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_IDLE = 30.0


class Threads:
    """Runs functions in at most `limit` threads, made when needed, let go when idle.

    They're daemons: code that never returns can't keep the process from ending (a standard executor joins its threads
    at exit), which a worker whose time of grace is over needs.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._lock = threading.Lock()
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any], Context]] = SimpleQueue()
        self._threads = 0
        self._idle = 0  # threads that wait and aren't yet promised to an item
        self._backlog = 0  # items that no thread is promised to

    def submit(self, fn: Callable[[], T], context: Context) -> Future[T]:
        """Runs `fn` in `context`, as soon as a thread is free."""
        future: Future[T] = Future()
        with self._lock:
            self._work.put((future, fn, context))
            if self._idle:
                self._idle -= 1
                return future
            if self._threads >= self._limit:
                self._backlog += 1
                return future
            self._threads += 1
        threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        return future

    def _serve(self) -> None:
        item = self._work.get()
        while item is not None:
            future, fn, context = item
            if future.set_running_or_notify_cancel():
                try:
                    result = context.run(fn)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del item, future, fn, context  # or the last call's values would live as long as the thread idles
            item = self._next()

    def _next(self) -> tuple[Future[Any], Callable[[], Any], Context] | None:
        with self._lock:
            if self._backlog:
                self._backlog -= 1
                return self._work.get()
            self._idle += 1
        try:
            return self._work.get(timeout=_IDLE)
        except Empty:
            with self._lock:
                if self._idle:
                    self._idle -= 1
                    self._threads -= 1
                    return None
            return self._work.get()  # promised to an item just now


class InThread(Generic[T]):
    """Sync code that a thread runs, or will."""

    def __init__(self, work: Future[T]) -> None:
        self._work = work
        self.outcome = asyncio.wrap_future(work)
        """Of what it comes to. It may be left alone: of code that outlives its execution nobody asks."""
        self.outcome.add_done_callback(_noticed)

    def withdraw(self) -> bool:
        """Has it not begin; False when it has."""
        return self._work.cancel()


class ThreadLayers:
    """A pool for each depth of nesting: code only ever waits for code that is deeper, so no pool can lock itself up."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._layers: list[Threads] = []

    def at(self, depth: int) -> Threads:
        while len(self._layers) <= depth:
            self._layers.append(Threads(self._limit, f"perdure-{len(self._layers)}"))
        return self._layers[depth]


def guarded(fn: Callable[[], T]) -> T:
    """Calls sync code. What would mean something else where it is raised again becomes a plain error."""
    try:
        return fn()
    except (StopIteration, GeneratorExit) as error:
        raise RuntimeError(f"{type(error).__name__} was raised and not caught") from error


def _noticed(future: asyncio.Future[Any]) -> None:
    """Nobody has to ask how it ended."""
    if not future.cancelled():
        future.exception()
