"""`Call`: one thing to do, awaited in async code and waited for in sync code; `Stream`: several things that come."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, Generic, Protocol, TypeVar

from perdure.errors import PerdureError

T = TypeVar("T")


class Home(Protocol):
    """Where a call is done that sync code waits for."""

    over: bool
    """Whether nothing comes of a call any more, done or not."""

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Does `work` and blocks the calling thread until then."""
        ...


class Portal:
    """An event loop in a thread of its own, for programs that have none; begun when first needed."""

    over = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` in the portal's loop and waits for its result. After a fork the child gets a loop of its own."""
        return asyncio.run_coroutine_threadsafe(work, self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                threading.Thread(target=self._loop.run_forever, name="perdure-portal", daemon=True).start()
            return self._loop

    def __repr__(self) -> str:
        return "PORTAL"


PORTAL = Portal()


class Call(Coroutine[Any, Any, T]):
    """One thing to do: nothing happens before it is awaited or waited for.

    Async code awaits it (or hands it to `asyncio.gather` or a task group); sync code says `.wait()` where async code
    says `await`. Both give the same value, and both can be done once. Inside of a workflow, give durable waits their
    own `timeout`: one of asyncio's is forgotten with the memory of the worker.

        receipt = await run.result()            # async
        receipt = run.result().wait()           # sync: a script, Flask, Django, a sync workflow
    """

    __slots__ = ("_begun", "_home", "_make", "_work", "what")

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, T]],
        what: str,
        home: Home = PORTAL,
    ) -> None:
        self.what = what
        self._make = make
        self._home = home
        self._begun = False
        self._work: Coroutine[Any, Any, T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._begin().__await__()

    def wait(self) -> T:
        """Does it and returns its value; blocks the calling thread until then.

        Raises what awaiting it would raise, and `PerdureError` in the thread of an event loop, which it would block.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._home.drive(self._begin())
        raise PerdureError(f"{self.what}: wait() would block the event loop of this thread; use await instead")

    def send(self, value: Any, /) -> Any:
        """Goes on, as a coroutine does: an event loop calls it, and people use `await`."""
        return self._driven().send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:
        """Raises an exception where it stands, as a coroutine does: for an event loop to call."""
        return self._driven().throw(typ if val is None else val)

    def close(self) -> None:
        """Ends it where it stands; one that has not begun never does."""
        self._begun = True
        if self._work is not None:
            self._work.close()

    def _driven(self) -> Coroutine[Any, Any, T]:
        return self._begin() if self._work is None else self._work

    def _begin(self) -> Coroutine[Any, Any, T]:
        if self._begun:
            raise PerdureError(f"{self.what}: awaited twice; keep its value instead")
        self._begun = True
        self._work = self._make()
        return self._work

    def __repr__(self) -> str:
        return f"<Call {self.what}>"

    def __del__(self) -> None:
        if not self._begun and not self._home.over:
            warnings.warn(
                f"{self.what} was never awaited, so it did not happen: write await (or .wait() in sync code)",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )


class Stream(Generic[T]):
    """Things that come one after the other: `async for` in async code, `for` in sync code. It can be gone through once.

    async for change in run.watch(): ...       # async
    for change in run.watch(): ...             # sync
    """

    def __init__(self, items: AsyncIterator[T], what: str) -> None:
        self.what = what
        self._items = items

    def __aiter__(self) -> AsyncIterator[T]:
        return self._items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return Call(self._next, self.what).wait()
        except StopAsyncIteration:
            raise StopIteration from None

    async def _next(self) -> T:
        return await anext(self._items)

    def __repr__(self) -> str:
        return f"<Stream {self.what}>"
