"""Steps whose effect and checkpoint are one transaction of the application's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from perdure.engine.definitions import StepDefinition
from perdure.engine.history import through_outages
from perdure.engine.points import Point
from perdure.errors import DefinitionError, InvalidInput
from perdure.model import Checkpoint, Json, Outcome
from perdure.stores.base import Kept, Within, joining
from perdure.stores.exchange import Save

if TYPE_CHECKING:
    from perdure.engine.execution import Execution

_PAUSE = 0.05
"""Seconds between two looks whether a transaction is over whose connection was lost."""


class ClaimLost(Exception):
    """The run is not this worker's any more, so the transaction is to be rolled back."""


class _KeptBefore(Exception):
    """Another transaction has kept the checkpoint, so this one is to be rolled back."""


class Effect:
    """One attempt of a step: calls its function in a transaction, with the checkpoint as the last thing before it
    commits."""

    def __init__(
        self,
        execution: Execution,
        transaction: Callable[[], Any],
        step: StepDefinition,
        checkpoint: Checkpoint,
        encoded: Callable[[Any], tuple[Json, Any]],
    ) -> None:
        self._execution = execution
        self._store = joining(execution.runtime.store)
        self._transaction = transaction
        self._step = step
        self._checkpoint = checkpoint
        self._encoded = encoded
        self._kept: Kept | None = None
        self._alone = False

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """For an async step: returns its value once that is committed."""
        async with _opened_async(self._transaction, self._step) as connection:
            self._within(connection)  # What can't be is refused before there is an effect.
            value = await self._step.fn(connection, *args, **kwargs)
            save, result = self._save(value)
            await self._begin()
            self._keeping(await self._within(connection).keep(save))
            return result
        raise self._swallowed()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """For a step in a thread: returns its value once that is committed."""
        with _opened(self._transaction, self._step) as connection:
            self._within(connection)
            value = self._step.fn(connection, *args, **kwargs)
            save, result = self._save(value)
            asyncio.run_coroutine_threadsafe(self._begin(), self._execution.runtime.loop).result()
            self._keeping(_in_place(self._within(connection), save))
            return result
        raise self._swallowed()

    async def check(self) -> None:
        """To be called when the transaction has ended without an error: raises `DefinitionError` if that was no commit.
        In each worker a step is looked after until it was seen to commit."""
        seen = self._execution.runtime.committing
        if self._step.name in seen:
            return
        if await self._look() is None:
            error = DefinitionError(
                f"the transaction of step {self._step.name} was not committed when its context manager ended without an"
                " error, so that nothing of the step is kept: transaction= has to open one that is committed at its end"
                " (pass sessions.begin, not sessions; engine.begin, not engine.connect)"
            )
            if await self.found(error) is None:
                raise error
        seen.add(self._step.name)

    async def found(self, error: BaseException) -> Checkpoint | None:
        """What is kept of the step after an error: None when its transaction was rolled back."""
        if self._kept is None:
            return None
        kept = self._kept
        if not kept.refused:
            self._execution.logger.warning(
                "whether step %s was committed is not known (%s); looking", self._checkpoint.key, error
            )
            while True:
                if await through_outages(lambda: self._store.is_over(kept.transaction)):
                    break
                await asyncio.sleep(_PAUSE)
        return await self._look()

    async def _look(self) -> Checkpoint | None:
        """The checkpoint that completes the step, if it is kept."""
        store, run_id = self._execution.runtime.store, self._execution.claim.id
        found = await through_outages(lambda: store.find(run_id, self._checkpoint.key))
        return None if found is None or found.outcome is Outcome.OPEN else found

    def end(self) -> None:
        """Its outcome has arrived."""
        if self._alone:
            self._alone = False
            self._execution.order.end_commit()

    def _save(self, value: Any) -> tuple[Save, Any]:
        self._checkpoint.body, result = self._encoded(value)
        claim = self._execution.claim
        return Save(claim.ref, claim.token, self._checkpoint), result

    def _within(self, connection: object) -> Within:
        try:
            within = self._store.within(connection)
        except InvalidInput as error:
            raise DefinitionError(f"step {self._step.name}: {error}") from error
        if within.is_async is not self._step.is_async:
            raise _mismatch(self._step)
        return within

    def _keeping(self, kept: Kept) -> None:
        if kept.refused == "lost":
            raise ClaimLost
        self._kept = kept
        if kept.refused:
            raise _KeptBefore

    async def _begin(self) -> None:
        """From here on nothing else of the run is kept, until `end`."""
        self._execution.tap(Point.AFTER_EFFECT, self._checkpoint.key)
        await self._execution.order.begin_commit()
        self._alone = True
        if self._execution.over:
            raise asyncio.CancelledError

    def _swallowed(self) -> Exception:
        return RuntimeError(f"step {self._step.name}: the context manager of its transaction swallowed an error")


async def call_async(
    transaction: Callable[[], Any], step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A step outside of a run: in a transaction, without a checkpoint."""
    async with _opened_async(transaction, step) as connection:
        return await step.fn(connection, *args, **kwargs)


def call(transaction: Callable[[], Any], step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same for a plain function."""
    with _opened(transaction, step) as connection:
        return step.fn(connection, *args, **kwargs)


def _opened_async(transaction: Callable[[], Any], step: StepDefinition) -> AbstractAsyncContextManager[Any]:
    opened = transaction()
    if not hasattr(opened, "__aenter__"):
        raise _mismatch(step)
    return cast("AbstractAsyncContextManager[Any]", opened)


def _opened(transaction: Callable[[], Any], step: StepDefinition) -> AbstractContextManager[Any]:
    opened = transaction()
    if not hasattr(opened, "__enter__"):
        raise _mismatch(step)
    return cast("AbstractContextManager[Any]", opened)


def _mismatch(step: StepDefinition) -> DefinitionError:
    if step.is_async:
        return DefinitionError(f"step {step.name} is async: its transaction= has to give an async context manager")
    return DefinitionError(
        f"step {step.name} is a plain function: its transaction= has to give a plain context manager"
    )


def _in_place(within: Within, save: Save) -> Kept:
    """On a blocking connection nothing suspends."""
    work = within.keep(save)
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("the work of a blocking connection suspended")
