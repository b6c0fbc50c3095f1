"""`Batch`: a handle on runs that were started together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from perdure.call import Call, Stream
from perdure.ended import among, as_they_end, ended_among
from perdure.engine.scope import holds_slot, wait_in_step, workflow_scope
from perdure.engine.waits import size_of
from perdure.errors import BatchNotFound
from perdure.model import BatchRecord
from perdure.run import Run, whether_existed
from perdure.stores.base import Store, Topic

if TYPE_CHECKING:
    from perdure.client import Client

R = TypeVar("R")


@dataclass(frozen=True)
class BatchProgress:
    """How far a batch has come, at one moment."""

    total: int
    succeeded: int
    failed: int
    cancelled: int

    @property
    def done(self) -> int:
        """How many of its runs have ended, however they ended."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def left(self) -> int:
        """How many of its runs have not ended."""
        return self.total - self.done


class Batch(Generic[R]):
    """Runs that were started together with `start_batch`, by the id of the batch.

    Making a handle asks nothing of the store; its methods do, and raise `BatchNotFound` when it has no such batch. The
    run of the n-th item (from 0) has the id of the batch with `/n` behind it.
    """

    def __init__(
        self, client: Client, batch_id: str, run: Callable[[str], Run[R]], *, existed: bool | None = False
    ) -> None:
        self.id = batch_id
        self._existed = existed
        self._client = client
        self._run = run

    @property
    def existed(self) -> bool:
        """Whether the start that gave this handle found the batch there already. `NotDurable` for one by a workflow's
        own code under an id that it gives, as with `Run.existed`."""
        return whether_existed(self._existed, f"batch {self.id}")

    def progress(self) -> Call[BatchProgress]:
        """How many of its runs have ended, how, and how many are left."""

        async def progress(store: Store) -> BatchProgress:
            return _progress(await self._record(store))

        return self._client.call(progress, f"progress() of batch {self.id}")

    def runs(self) -> Call[list[Run[R]]]:
        """Handles on its runs, in the order of the items."""

        async def runs(store: Store) -> list[Run[R]]:
            return self._runs((await self._record(store)).total)

        return self._client.call(runs, f"runs() of batch {self.id}")

    def result(self) -> Call[list[R]]:
        """The results of its runs, in the order of the items, once all have ended.

        Raises `RunFailed` or `RunCancelled`, of the first in that order, when one did not succeed, and `RunNotFound`
        when one was deleted, or pruned since. Inside of a workflow it is a durable wait for all of them.
        """
        scope = workflow_scope(self._client, f"batch {self.id}")
        what = f"result() of batch {self.id}"
        if scope is None:
            in_step = holds_slot(self._client)
            return Call(lambda: self._result(in_step=in_step), what)
        execution, key = scope.execution, scope.key("batch.size")

        async def size() -> int:
            return (await self._record(execution.runtime.store)).total

        async def wait_durably() -> list[R]:
            runs = self._runs(await size_of(execution, key, size))
            # Side by side, so that the run is put away for all of them at once.
            outcomes = await asyncio.gather(*(run.result() for run in runs), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            return cast("list[R]", outcomes)

        return Call(wait_durably, what, execution)

    def ended(self) -> Stream[Run[R]]:
        """Its runs as they end, each once; those that have ended already come first, and those that were deleted are
        left out. For runs that are no batch see `App.as_ended`.

        Raises `NotDurable` inside of a workflow, where the order would be another one when it is replayed, and
        `WouldDeadlock` in a step, which keeps its slot, when it would have to wait for a run of the same store.

            async for run in batch.ended():
                print(run.id, await run.result())
        """
        waiting: dict[str, Run[R]] = {}
        begun = False

        async def look(store: Store) -> list[str]:
            nonlocal begun
            record = await self._record(store)
            if not begun:
                waiting.update((run.id, run) for run in self._runs(record.total))
                begun = True
            left = _progress(record).left
            found = await ended_among(store, waiting) if left < len(waiting) else []
            if not left:  # what has not ended now is live again, or gone
                for run_id in await among(store.missing, waiting.keys() - set(found)):
                    del waiting[run_id]
            return found

        return as_they_end(self._client, waiting, look, f"ended() of batch {self.id}")

    async def _result(self, *, in_step: bool) -> list[R]:
        runs: list[Run[R]] = []
        async with aclosing(self._client.follow(self._record, Topic.ENDED)) as records:
            async for record in records:
                if not _progress(record).left:
                    runs = self._runs(record.total)
                    break
                if in_step:
                    raise wait_in_step(f"result() of batch {self.id}")
        return [await run.result() for run in runs]

    def _runs(self, total: int) -> list[Run[R]]:
        return [self._run(f"{self.id}/{number}") for number in range(total)]

    async def _record(self, store: Store) -> BatchRecord:
        record = await store.batch(self.id)
        if record is None:
            raise BatchNotFound(f"there is no batch {self.id!r}; was it pruned, or is this another store?")
        return record

    def __repr__(self) -> str:
        return f"<batch {self.id}>"


def _progress(record: BatchRecord) -> BatchProgress:
    return BatchProgress(record.total, record.succeeded, record.failed, record.cancelled)
