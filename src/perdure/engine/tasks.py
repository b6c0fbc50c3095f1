"""The asyncio tasks of runs: whose each is, and whether it can go on by itself.

A run may be put away when all of its tasks wait for something that only the store can bring. What a task waits for is
read from the task: a wait of the run, another task, or a part of asyncio that some other task has to move (a lock, a
queue, a group). Whatever else (a timer, a socket, a thread) comes by itself, and the run stays in memory for it.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
from collections.abc import Callable, Container, Coroutine, Iterator
from pathlib import Path
from types import MethodType
from typing import Any

from perdure.engine.scope import scope_of_creator

logger = logging.getLogger("perdure.worker")

_ASYNCIO = str(Path(asyncio.__file__).parent)

_MOVED_BY_TASKS = {"locks.py", "queues.py", "taskgroups.py"}
_WAITING_FOR_TASKS = {"_wait", "_wait_for_one"}


class Adoption:
    """Has each task that code of a run makes be known to its execution, until this ends.

    A task factory that is set is kept in use, and put back by the last adoption of the loop, unless another one was set
    meanwhile.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        factory = loop.get_task_factory()
        if not isinstance(factory, _Adopting):
            factory = _Adopting(factory)
            loop.set_task_factory(factory)
        factory.adoptions.add(self)
        self._loop = loop
        self._factory = factory

    def new_task(self, coro: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Makes the task of a run itself, which is nobody's to adopt."""
        return self._factory.make(self._loop, coro)

    def end(self) -> None:
        """Adopts no more; may be repeated."""
        factory = self._factory
        factory.adoptions.discard(self)
        if not factory.adoptions and self._loop.get_task_factory() is factory:
            self._loop.set_task_factory(factory.previous)


class _Adopting:
    def __init__(self, previous: Callable[..., Any] | None) -> None:
        self.previous = previous
        self.make: Callable[..., Any] = _task if previous is None else previous
        self.adoptions: set[Adoption] = set()

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        task = self.make(loop, coro, **options)
        scope = scope_of_creator(options.get("context"))
        if scope is not None and scope.attempt is None:
            # In a step it may be anything, such as the housekeeping of a client that the step opens for others too.
            scope.execution.spawned.adopt(task)
        return task


def _task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


def unwind(task: asyncio.Task[Any], *, cancel: bool) -> None:
    """Ends the code of a task whose outcome nobody asks for: at once and without its going on, or (`cancel`) as
    asyncio does it."""
    if not cancel:
        # Its group is not told: it would complain that its own task is over already.
        callbacks: list[tuple[Callable[..., Any], Any]] = getattr(task, "_callbacks", None) or []
        for callback, _ in list(callbacks):
            if isinstance(getattr(callback, "__self__", None), asyncio.TaskGroup):
                task.remove_done_callback(callback)
        _close(task)
    task.add_done_callback(_unheard)
    task.cancel()


def _close(task: asyncio.Task[Any]) -> None:
    try:
        work = task.get_coro()
        if work is not None:
            work.close()
    except (RuntimeError, ValueError, asyncio.CancelledError) as error:
        # It awaited something in a `finally`, which it can't any more, or called what does nothing any more; or it is
        # the code that runs just now.
        logger.debug("code of a run that is over could not be closed: %s", error)
    except BaseException:
        logger.exception("code of a run that is over raised while it was closed")


def _unheard(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def waits_for_others(
    task: asyncio.Task[Any], waits: Container[Any], tasks: Container[Any], *, timed: bool = False
) -> bool:
    """Whether a task can't go on before one of `waits` is over or another one of `tasks` has moved it; or (`timed`)
    before the time limit that it has set for that is over."""
    waiter: asyncio.Future[Any] | None = getattr(task, "_fut_waiter", None)
    if waiter is None or waiter.done():
        return False  # it is about to run
    if not timed and any(_is_timed(coroutine) for coroutine in _coroutines(task)):
        return False  # its time limit moves it
    frames = list(_asyncio_frames(task))
    if waiter in waits:
        return True
    shielded = _shielded(waiter)
    if shielded is not None:
        return shielded in waits or shielded in tasks
    if isinstance(waiter, asyncio.Task):
        return waiter in tasks
    if type(waiter).__name__ == "_GatheringFuture":
        return True
    for file, name, limited, innermost in frames:
        if innermost:
            return file in _MOVED_BY_TASKS or (name in _WAITING_FOR_TASKS and not limited) or (timed and limited)
    return False


def _shielded(waiter: asyncio.Future[Any]) -> asyncio.Future[Any] | None:
    """What an outer future of `asyncio.shield` stands for, which only its callback knows."""
    callbacks: list[tuple[Callable[..., Any], Any]] = getattr(waiter, "_callbacks", None) or []
    for callback, _ in callbacks:
        if getattr(callback, "__qualname__", "") == "shield.<locals>._outer_done_callback":
            return inspect.getclosurevars(callback).nonlocals.get("inner")
    return None


def _coroutines(task: asyncio.Task[Any]) -> Iterator[Any]:
    """The coroutines that a task is stopped in, from the outermost one."""
    inner: Any = task.get_coro()
    while inner is not None and hasattr(inner, "cr_code"):
        yield inner
        inner = inner.cr_await


def _is_timed(coroutine: Any) -> bool:
    """Whether code is stopped within a time limit of asyncio's that is set.

    `wait_for` tells it by its name. What a block was entered with, and what a loop goes over, lies on the stack of its
    frame, which can't be read, but whose objects can be told.
    """
    if _is_of_asyncio(coroutine) and coroutine.cr_code.co_name == "wait_for":
        return _has_timeout(coroutine)
    held: Any
    for held in gc.get_referents(coroutine):
        # Of a block it is the bound `__aexit__`, or (since 3.14) what that is of. What else lies there is the user's,
        # and may not like to be asked anything.
        limit: Any = held.__self__ if type(held) is MethodType else held
        if type(limit) is asyncio.Timeout and limit.when() is not None:
            return True
        if _alarm_of_as_completed(held) is not None:
            return True
    return False


def _alarm_of_as_completed(held: Any) -> Any:
    """The timer of an `as_completed` that code goes over: a generator, or since 3.13 an object."""
    kind = type(held).__name__
    if kind == "generator" and held.gi_code is asyncio.as_completed.__code__:
        return None if held.gi_frame is None else held.gi_frame.f_locals.get("timeout_handle")
    return getattr(held, "_timeout_handle", None) if kind == "_AsCompletedIterator" else None


def _is_of_asyncio(coroutine: Any) -> bool:
    return coroutine.cr_code.co_filename.rpartition("/")[0] == _ASYNCIO


def _has_timeout(coroutine: Any) -> bool:
    return coroutine.cr_frame is not None and coroutine.cr_frame.f_locals.get("timeout") is not None


def _asyncio_frames(task: asyncio.Task[Any]) -> Iterator[tuple[str, str, bool, bool]]:
    """The functions of asyncio that a task is stopped in, from the outermost one: file, name, whether they have a time
    limit, and whether it is the innermost function of all."""
    for coroutine in _coroutines(task):
        if _is_of_asyncio(coroutine):
            code, innermost = coroutine.cr_code, not hasattr(coroutine.cr_await, "cr_code")
            yield code.co_filename.rpartition("/")[2], code.co_name, _has_timeout(coroutine), innermost
