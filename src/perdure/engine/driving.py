"""Steps and waits of sync code: the event loop does them, and the thread of the code waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.engine.halt import Halt

if TYPE_CHECKING:
    from perdure.engine.execution import Execution

T = TypeVar("T")


def drive(execution: Execution, work: Coroutine[Any, Any, T]) -> T:
    """Has the event loop do `work` for a thread of the run, which blocks until it is over.

    `Halt` ends the thread's code when the execution is over. It hears once of a cancellation, as `CancelledError`.
    """
    if execution.over:
        work.close()
        raise Halt
    if execution.delivered and not execution.thread_told:
        work.close()
        raise _cancellation(execution)
    future = asyncio.run_coroutine_threadsafe(_driven(execution, work), execution.runtime.loop)
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        work.close()  # it may have been cancelled before it began
        if execution.over:
            raise Halt from None
        raise _cancellation(execution) from None


def has_thread(task: asyncio.Task[Any]) -> bool:
    """Whether a thread waits for the task, and has to hear of its end."""
    return getattr(task.get_coro(), "cr_code", None) is _driven.__code__


async def _driven(execution: Execution, work: Coroutine[Any, Any, T]) -> T:
    execution.track(asyncio.current_task())
    return await work


def _cancellation(execution: Execution) -> asyncio.CancelledError:
    execution.thread_told = True
    return asyncio.CancelledError(execution.cancelling.reason if execution.cancelling else None)
