"""Steps in processes of their own, for work that would hold the interpreter's lock; there they can be killed."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.clock import passed
from perdure.engine.leases import LeaseThread
from perdure.errors import DefinitionError, StepFailed, StepProcessDied
from perdure.failures import decode_failure, encode_failure, rebuild
from perdure.signature import Signature

if TYPE_CHECKING:
    from pebble import ProcessPool


class Processes:
    """A pool of processes, begun at the first step that asks for one. Cancelling a call kills its process.

    Arguments and result travel as JSON, as everything else does; the function is found by module and name.
    """

    def __init__(self, limit: int, max_value_bytes: int) -> None:
        self._limit = limit
        self._max_value_bytes = max_value_bytes
        self._pool: ProcessPool | None = None
        # Calls wait here, where they can be asked for their lease when it is their turn, and not in the pool's pipe.
        self._free = asyncio.Semaphore(limit)

    async def run(self, key: str, fn: Callable[..., Any], arguments: str, lease: LeaseThread | None) -> Any:
        """What `fn` returns in another process; its exception when it raises one, or `StepFailed` of that key when it
        can't be made again. It begins while the lease is certain."""
        if "<" in fn.__qualname__:
            raise DefinitionError(
                f"step {fn.__qualname__} can't run in a process: another process must find it, so define it at the top"
                " level of a module"
            )
        pool = self._started()
        async with self._free:
            returned, text = await self._call(pool, fn, arguments, lease)
        if returned:
            return Signature(fn, f"step {fn.__qualname__}", open_ended=True).returns.decode(text)
        info = decode_failure(text)
        raise rebuild(info) or StepFailed(key, info)

    async def _call(
        self, pool: ProcessPool, fn: Callable[..., Any], arguments: str, lease: LeaseThread | None
    ) -> tuple[bool, str]:
        from pebble import ProcessExpired

        while True:
            until = None
            if lease is not None:
                await lease.hold()
                until = passed() + lease.left / 1000
            future = pool.schedule(_call, [fn.__module__, fn.__qualname__, arguments, self._max_value_bytes, until])
            try:
                outcome = await asyncio.wrap_future(future)
            except ProcessExpired as error:
                raise StepProcessDied(
                    f"the process of step {fn.__qualname__} ended before the step did (exit code {error.exitcode}): it"
                    " was killed, ran out of memory, or called os._exit"
                ) from None
            if outcome is not None:
                return outcome

    def close(self) -> None:
        """Kills what is running."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None

    def _started(self) -> ProcessPool:
        if self._pool is None:
            try:
                from pebble import ProcessPool
            except ModuleNotFoundError:
                raise DefinitionError(
                    "a step with process=True needs an extra: pip install 'perdure[process]'"
                ) from None
            context: Any = multiprocessing.get_context("spawn")
            self._pool = ProcessPool(max_workers=self._limit, context=context, initializer=_end_with_parent)
        return self._pool


def _end_with_parent() -> None:
    """In the other process: ends it when the worker's process dies, whose run goes on elsewhere then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        sentinel = parent.sentinel

        def watch() -> None:
            multiprocessing.connection.wait([sentinel])
            os._exit(1)

        threading.Thread(target=watch, name="perdure-parent", daemon=True).start()


def _call(module: str, qualname: str, arguments: str, limit: int, until: float | None) -> tuple[bool, str] | None:
    """In the other process: finds the function, calls it, gives back whether it returned, and its result or its
    exception as JSON: not every exception survives pickling. None when it is too late to begin: a process that was not
    there yet may have come to it only when the worker, which stood still, went on."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    fn: Callable[..., Any] = getattr(found, "fn", found)  # the module's name holds the step made of the function
    signature = Signature(fn, f"step {qualname}", open_ended=True)
    args, kwargs = signature.decode(arguments)
    if until is not None and passed() >= until:
        return None
    try:
        text, _ = signature.encode_result(fn(*args, **kwargs), f"step {qualname}", limit)
        return True, text
    except BaseException as error:  # an exit as well: the process serves others
        return False, encode_failure(error)
