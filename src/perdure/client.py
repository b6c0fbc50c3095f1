"""The store as an app uses it: opened when first needed, and one watch for all results that are waited for."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from contextvars import Context
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from perdure.backoff import pauses
from perdure.call import Call, Stream
from perdure.engine.scope import step_scope
from perdure.errors import RunNotFound, StoreError, StoreUnavailable
from perdure.model import Ended, Start, Started
from perdure.stores.base import Store, Subscription, Topic, Within, joining

T = TypeVar("T")

logger = logging.getLogger("perdure.client")

_POLL = 1.0
"""Seconds, at most, between two looks for results when no wake-up comes."""

_MOST_TOLD = 1000
"""The most groups of which a process says that their limit is not the one of its code."""

_LINGER = 2.0
"""Seconds for which the subscription stays when nobody waits: who asks for one result after the other has it ready."""

_LONGEST_PAUSE = 1.5
"""Seconds between two tries while the store does not answer: what waits goes on within two when it is back."""

_FAREWELL = 5.0
"""Seconds that closing waits for what other event loops are at."""


class Client:
    """Opens the store once, whatever the number of event loops and threads that use the app."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._opened = False
        self._opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._results: WeakKeyDictionary[asyncio.AbstractEventLoop, Results] = WeakKeyDictionary()
        self._told: set[tuple[str, str]] = set()

    async def store(self) -> Store:
        """The store, open."""
        if not self._opened:
            async with self._opening.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                if not self._opened:
                    await self._store.open()
                    self._opened = True
        return self._store

    def call(self, work: Callable[[Store], Coroutine[Any, Any, T]], what: str) -> Call[T]:
        """A call that asks the store or changes it, and of which a workflow keeps nothing: `NotDurable` in its own
        code. In a step, whose outcome is kept, it is done as anywhere else, unless the worker has lost the run."""
        scope = step_scope(what)

        async def call() -> T:
            if scope is not None and scope.execution.over:
                raise asyncio.CancelledError
            return await work(await self.store())

        return Call(call, what)

    def stream(self, items: Callable[[], AsyncGenerator[T]], what: str) -> Stream[T]:
        """The same for what comes one after the other."""
        step_scope(what)
        return Stream(items(), what)

    def is_on(self, store: Store) -> bool:
        """Whether this is the store that it uses."""
        return self._store is store

    def within(self, connection: object) -> Within:
        """The store on a connection of the application. Raises `StoreError` for one that can't be there, and
        `InvalidInput` for what is no connection with a transaction."""
        return joining(self._store).within(connection)

    async def enqueue(self, starts: Sequence[Start]) -> list[Started]:
        """Makes runs; says in the log, once, of which groups the limit is another one than the code asks for."""
        started = await (await self.store()).enqueue(starts)
        for start, made in zip(starts, started, strict=True):
            group = start.queue, start.group
            if made.group_limit is not None and group not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add(group)
                logger.warning(
                    "code asks for %d at a time of group %s in queue %s, which was made with another limit: %d stands;"
                    " `perdure limits set --group` changes that",
                    start.group_limit,
                    start.group,
                    start.queue,
                    made.group_limit,
                )
        return started

    async def ended(self, run_id: str) -> Ended:
        """Waits until a run has ended."""
        store = await self.store()
        results = self._results.setdefault(asyncio.get_running_loop(), Results(store))
        return await results.wait(run_id)

    async def follow(self, read: Callable[[Store], Coroutine[Any, Any, T]], *topics: Topic) -> AsyncGenerator[T]:
        """What `read` gives: at once, whenever something of the topics may have changed, and from time to time."""
        store = await self.store()
        wake = asyncio.Event()
        tries = pauses(0.05, _LONGEST_PAUSE)
        async with AsyncExitStack() as stack:
            for topic in topics:
                subscription = await store.subscribe(topic, wake.set)
                stack.push_async_callback(subscription.close)
            while True:
                wake.clear()
                try:
                    found = await read(store)
                except StoreUnavailable as error:
                    logger.warning("the store does not answer (%s); still following", error)
                    await asyncio.sleep(next(tries))
                    continue
                tries = pauses(0.05, _LONGEST_PAUSE)
                yield found
                try:
                    async with asyncio.timeout(_POLL * random.uniform(0.7, 1.0)):
                        await wake.wait()
                except TimeoutError:
                    pass

    async def close(self) -> None:
        """Closes the store; the next use opens it again."""
        here = asyncio.get_running_loop()
        for loop, results in list(self._results.items()):
            if loop is here:
                await results.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(results.close(), loop)
                # Its loop may end meanwhile, and it with the loop.
                await asyncio.wait([asyncio.wrap_future(closing)], timeout=_FAREWELL)
        self._results.clear()
        if self._opened:
            self._opened = False
            await self._store.close()


class Results:
    """The results that one event loop waits for: one subscription and one question to the store for all of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: defaultdict[str, set[asyncio.Future[Ended]]] = defaultdict(set)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._polling: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Those that take their leave of the store included."""
        self._unsure: set[str] = set()
        """Those of which it is to be asked whether there is such a run: new ones, and all of them from time to time."""

    async def wait(self, run_id: str) -> Ended:
        """Waits until the run has ended; `RunNotFound` when there is none of that id."""
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._waiting[run_id].add(future)
        self._unsure.add(run_id)
        self._wake.set()
        if self._task is None or self._task.done():
            # In a context of its own: it serves others too, and outlives the run or request that asks first.
            self._task = asyncio.get_running_loop().create_task(self._serve(), context=Context())
            self._tasks.add(self._task)
            self._task.add_done_callback(self._tasks.discard)
        try:
            return await future
        finally:
            waiters = self._waiting[run_id]
            waiters.discard(future)
            if not waiters:
                del self._waiting[run_id]
                self._unsure.discard(run_id)

    async def close(self) -> None:
        """Tells those who wait, and returns when the store is not used any more. To be called in its event loop."""
        if self._task is not None:
            self._task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail(StoreError("the store was closed while results were waited for"))

    async def _serve(self) -> None:
        """Asks for results whenever a wake-up comes, and from time to time, as long as somebody waits."""
        subscription: Subscription | None = None
        tries: Iterator[float] | None = None
        time = asyncio.get_running_loop().time
        waited = time()
        self._poll()
        try:
            while self._waiting or time() - waited < _LINGER:
                try:
                    if subscription is None:
                        subscription = await self._store.subscribe(Topic.ENDED, self._wake.set)
                    self._wake.clear()
                    if self._waiting:
                        waited = time()
                        await self._look()
                    tries = None
                    await self._wake.wait()
                except StoreUnavailable as error:
                    logger.warning("the store does not answer (%s); still waiting for results", error)
                    tries = tries or pauses(0.05, _LONGEST_PAUSE)
                    await asyncio.sleep(next(tries))
        except Exception as error:
            self._fail(error)
        finally:
            self._task = None  # whoever waits from here on needs another one: closing takes a while
            if self._polling is not None:
                self._polling.cancel()
            if subscription is not None:
                try:
                    await subscription.close()
                except StoreError as error:
                    logger.debug("a subscription could not be closed: %s", error)

    def _poll(self) -> None:
        """Has it asked for all of them from time to time: one timer for many looks."""
        self._unsure.update(self._waiting)
        self._wake.set()
        self._polling = asyncio.get_running_loop().call_later(_POLL * random.uniform(0.7, 1.0), self._poll)

    def _fail(self, error: Exception) -> None:
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)

    async def _look(self) -> None:
        unsure = self._unsure & self._waiting.keys()
        for ended in await self._store.ended(list(self._waiting)):
            unsure.discard(ended.id)
            for future in self._waiting.get(ended.id, ()):
                if not future.done():
                    future.set_result(ended)
        for run_id in await self._store.missing(list(unsure)) if unsure else ():
            error = RunNotFound(f"there is no run {run_id!r}; was it pruned or deleted, or is this another store?")
            for future in self._waiting.get(run_id, ()):
                if not future.done():
                    future.set_exception(error)
        self._unsure -= unsure
