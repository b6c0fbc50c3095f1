"""How a step runs: its kept outcome if there is one, else attempts until there is one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from copy import deepcopy
from types import NoneType, coroutine
from typing import Any

from msgspec import json

from perdure.engine.commits import ClaimLost, Effect
from perdure.engine.definitions import StepDefinition
from perdure.engine.execution import Execution
from perdure.engine.interrupts import is_ctrl_c
from perdure.engine.points import Point
from perdure.engine.scope import Attempt, Scope, enter
from perdure.errors import (
    DecodingError,
    DefinitionError,
    EncodingError,
    PerdureError,
    StepCancelled,
    StepCutOff,
    StepFailed,
    StepTimedOut,
    ValueTooLarge,
    kept_type,
)
from perdure.failures import decode_failure, describe, encode_failure, raised_by, rebuild
from perdure.model import Checkpoint, Json, Kind, Millis, Outcome, Wait, WaitFor

_HOPELESS = (DefinitionError, EncodingError, ValueTooLarge, DecodingError)
_UNCHANGEABLE = (str, int, float, bool, bytes, NoneType)


async def run_step(
    execution: Execution,
    scope: Scope,
    step: StepDefinition,
    key: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The value of a step: what an earlier attempt of the run kept, or what it returns now, once that is durable."""
    arguments, digest = step.signature.digest(args, kwargs, execution.runtime.max_value_bytes)
    saved = await execution.saved(key, Kind.STEP, digest)
    since = 0 if scope.attempt is None else scope.attempt.since
    failed_before = saved is not None and saved.outcome is Outcome.ERROR and saved.position < since
    if failed_before:
        saved = None  # The enclosing step failed with it, and is tried again, this one too.
    if saved is not None and saved.outcome is not Outcome.OPEN:
        if saved.outcome is Outcome.ERROR and _is_kept(saved, StepCancelled):
            await execution.waits.until_cancelled(key)
        await execution.replay(saved.saved_at, saved.position)
        return _outcome(step, saved)
    attempts = _Attempts(execution, scope, step, key, args, kwargs, arguments, digest, since)
    if failed_before and step.transaction is not None:
        attempts.announced = True  # What a transaction keeps takes the place of nothing that completes.
    return await attempts.run(saved)


class _Attempts:
    """The attempts of one step that has no outcome yet."""

    __slots__ = (
        "announced",
        "args",
        "arguments",
        "attempt",
        "digest",
        "execution",
        "kept",
        "key",
        "kwargs",
        "scope",
        "since",
        "started_at",
        "step",
        "thread",
        "within",
    )

    def __init__(
        self,
        execution: Execution,
        scope: Scope,
        step: StepDefinition,
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: Json,
        digest: str,
        since: int,
    ) -> None:
        self.execution = execution
        self.scope = scope
        self.step = step
        self.key = key
        self.args = args
        self.kwargs = kwargs
        self.arguments = arguments
        self.digest = digest
        self.announced = step.retry is not None and not step.retry.allows(1)
        """Whether it is kept that it begins, before it does."""
        self.started_at: Millis = 0
        self.attempt = 0
        """The number of the one that is under way, or was last."""
        self.since = since
        self.kept = False
        """Whether its outcome is kept, or on its way to be."""
        self.thread: asyncio.Future[Any] | None = None
        within = None if scope.attempt is None else scope.attempt.within
        self.within = {} if within is None and step.retry is not None else within

    async def run(self, saved: Checkpoint | None) -> Any:
        try:
            return await self._run(saved)
        except asyncio.CancelledError:
            self._cancelled()
            raise

    async def _run(self, saved: Checkpoint | None) -> Any:
        execution = self.execution
        if saved is not None:
            self.attempt = saved.attempts
            cut_off = _kept_cut_off(saved)  # For the steps in it an attempt that was cut off goes on.
            self.since = max(self.since, saved.position if cut_off is None else cut_off.since)
            if saved.at is not None and saved.at > execution.now():
                await self._back_off(saved.at)
        await execution.live()
        if self.announced:
            with execution.in_flight():
                await self._announce(saved)
        elif execution.claim.cut_off and not execution.progressed:
            with execution.in_flight():
                await self._count_cut_off()
        while True:
            if execution.rests:
                await execution.take_slot()
            self.attempt += 1
            attempt = Attempt(self.key, self.attempt, self.since, self.within)
            execution.begin(self.key)
            try:
                return await self._try(attempt)
            except _Again as again:
                at = again.at
            finally:
                attempt.over = True
                execution.end(self.key)
            await execution.left_behind(self.key)
            await self._back_off(at)
            self.since = sys.maxsize
            execution.forget_names(self.key)

    def _cancelled(self) -> None:
        """The call was cancelled. If that is the doing of the workflow's code it is kept, so that a replay, where that
        comes again, does not run the step once more. If the run was cancelled, what a thread has brought to its end
        all the same is kept for a retry. (Within a step, and in a transaction, it is as if nothing were done.)"""
        execution = self.execution
        if execution.over or execution.runtime.ending or self.step.transaction is not None:
            return
        if execution.cancelling is not None:
            if not self.kept and self.thread is not None and _has_value(self.thread):
                try:
                    body, _ = self._encoded(self.thread.result())
                except _HOPELESS:
                    return
                execution.save_soon(self._checkpoint(Outcome.OK, body))
        elif self.scope.attempt is None and self._is_being_cancelled():
            # Also in the place of an outcome that is on its way: the code has gone on without it.
            error = StepCancelled(f"step {self.key} was cancelled by the workflow's code")
            execution.save_soon(self._checkpoint(Outcome.ERROR, encode_failure(error)))

    def _is_being_cancelled(self) -> bool:
        """Whether the task that the call is in was asked to end, so that a `CancelledError` is not the step's own."""
        task = asyncio.current_task(self.execution.runtime.loop)
        return task is None or task.cancelling() > 0

    async def _try(self, attempt: Attempt) -> Any:
        """One attempt: returns the value, raises what is final, or `_Again`."""
        execution = self.execution
        if execution.runtime.lease is not None:
            await execution.runtime.lease.hold()
        execution.tap(Point.BEFORE_STEP, self.key)
        self.started_at = execution.now()
        body = ""
        try:
            if self.step.transaction is None:
                value = await self._invoke(attempt, self.step.fn)
                execution.tap(Point.AFTER_EFFECT, self.key)
                body, result = self._encoded(value)
            else:
                result = await self._commit(attempt, self.step.transaction)
        except GeneratorExit:
            raise
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            if isinstance(error, asyncio.CancelledError) and self._is_being_cancelled():
                raise
            if execution.over:
                raise asyncio.CancelledError from None
            await self._failed(error)
            raise
        if self.step.transaction is None:
            await self._save(Outcome.OK, body)
        execution.tap(Point.AFTER_CHECKPOINT, self.key)
        # Decoded, so that the workflow sees now what it would see after a crash.
        return result

    async def _commit(self, attempt: Attempt, transaction: Callable[[], Any]) -> Any:
        """One attempt whose effect and checkpoint are committed together. What became of a commit whose reply was lost
        (or came after the step's time was over) is found out before anything else is said of the step."""
        execution = self.execution
        checkpoint = self._checkpoint(Outcome.OK, "")
        effect = Effect(execution, transaction, self.step, checkpoint, self._encoded)
        try:
            result = await self._invoke(attempt, effect.call_async if self.step.is_async else effect.call)
        except ClaimLost:
            execution.lost()
            raise asyncio.CancelledError from None
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            found = await effect.found(error)
            if found is None:
                raise
            execution.keep(found)
            await execution.completed()
            return _outcome(self.step, found)
        else:
            await effect.check()
            execution.keep(checkpoint)
            await execution.completed()
            return result
        finally:
            effect.end()

    def _encoded(self, value: Any) -> tuple[Json, Any]:
        """The step's value as it is kept, and as it will be read again."""
        return self.step.signature.encode_result(value, f"step {self.key}", self.execution.runtime.max_value_bytes)

    async def _failed(self, error: BaseException) -> None:
        """Keeps a failure, and raises it as it will be raised after a crash; returns when that is the error itself."""
        retry = self.step.retry
        if (
            retry is not None
            and retry.allows(self.attempt)
            and retry.covers(error)
            and not isinstance(error, _HOPELESS)
            and self.execution.cancelling is None
        ):
            at = self.execution.now() + retry.delay_after(self.attempt, self.execution.runtime.random())
            await self._save(Outcome.OPEN, encode_failure(error), at)
            raise _Again(at)
        if isinstance(error, StepFailed) and error.key == self.key:
            # The process that it ran in has told of it in these words already.
            raised_by(error, self.step.name)
            await self._save(Outcome.ERROR, json.encode(error.info).decode())
            return
        info = describe(error)
        await self._save(Outcome.ERROR, json.encode(info).decode())
        # Not the error itself: code that looks at what is not kept of it would take another way than after a crash.
        again = rebuild(info)
        if again is None:
            raise raised_by(StepFailed(self.key, info), self.step.name) from error
        again.__cause__, again.__context__ = error.__cause__, error.__context__
        again.__suppress_context__ = error.__suppress_context__
        raise raised_by(again, self.step.name).with_traceback(error.__traceback__)

    async def _invoke(self, attempt: Attempt, fn: Callable[..., Any]) -> Any:
        step, execution = self.step, self.execution
        inner = Scope(
            execution,
            asyncio.current_task(execution.runtime.loop) if step.is_async else None,
            f"{self.key}/",
            depth=self.scope.depth + 1,
            attempt=attempt,
        )
        if step.timeout is None:
            return await self._call(inner, attempt, fn)
        limit = asyncio.timeout(None)
        alarm = execution.runtime.clock.call_at(
            self.started_at + step.timeout, lambda: limit.reschedule(execution.runtime.loop.time())
        )
        try:
            async with limit:
                return await self._call(inner, attempt, fn)
        except TimeoutError:
            if limit.expired():
                raise StepTimedOut(f"step {self.key} took longer than its timeout of {step.timeout} ms") from None
            raise
        finally:
            alarm.cancel()

    async def _call(self, inner: Scope, attempt: Attempt, fn: Callable[..., Any]) -> Any:
        step = self.step
        if step.process:
            return await self.execution.runtime.processes.run(
                self.key, fn, self.arguments, self.execution.runtime.lease
            )
        # What it does to them is seen by nobody else, as after a crash, when it does not run.
        args, kwargs = [_own(each) for each in self.args], {name: _own(each) for name, each in self.kwargs.items()}
        if step.is_async:
            context = copy_context()
            context.run(enter, inner)
            return await _in_context(context, fn(*args, **kwargs))
        return await self._call_in_thread(inner, attempt, lambda: fn(*args, **kwargs))

    async def _call_in_thread(self, inner: Scope, attempt: Attempt, call: Callable[[], Any]) -> Any:
        lease = self.execution.runtime.lease

        def begin() -> Any:
            if lease is not None and not lease.certain:  # it has waited for a thread since that was looked at
                raise _Late
            return call()

        while True:
            thread = self.execution.in_thread(inner, begin)
            self.thread = thread.outcome
            try:
                return await asyncio.shield(thread.outcome)
            except _Late:
                if lease is not None:
                    await lease.hold()
            except asyncio.CancelledError:
                attempt.cancelled = True  # what the thread sees
                if not thread.withdraw() and not self.execution.over:
                    await _until_done(thread.outcome)
                raise

    async def _back_off(self, at: Millis) -> None:
        await self.execution.wait(Wait(f"{self.key}.retry", WaitFor.TIMER, at=at))

    async def _announce(self, saved: Checkpoint | None) -> None:
        """Of a step that may have one attempt it is kept that this begins, so that a crash leaves no doubt; of one that
        a transaction is to keep, in the place of an error that is over."""
        if saved is None:
            self.started_at = self.execution.now()
            await self.execution.save(self._checkpoint(Outcome.OPEN, None))
        elif self.execution.claim.cut_off:
            await self._count_cut_off()

    async def _count_cut_off(self) -> None:
        """The worker died in the attempt before, and nothing has completed since: it is this step, or one beside it,
        that was cut off (or about to begin). That attempt counts."""
        self.attempt += 1
        error = StepCutOff(f"attempt {self.attempt} of step {self.key} was cut off when its worker died", self.since)
        retry = self.step.retry
        final = retry is not None and not retry.allows(self.attempt)
        await self._save(Outcome.ERROR if final else Outcome.OPEN, encode_failure(error))
        if final:
            raise raised_by(error, self.step.name)

    async def _save(self, outcome: Outcome, body: Json, at: Millis | None = None) -> None:
        self.kept = outcome is not Outcome.OPEN
        await self.execution.save(self._checkpoint(outcome, body, at))

    def _checkpoint(self, outcome: Outcome, body: Json | None, at: Millis | None = None) -> Checkpoint:
        return Checkpoint(
            self.key,
            Kind.STEP,
            outcome,
            body,
            attempts=self.attempt,
            digest=self.digest,
            at=at,
            started_at=self.started_at,
        )


def _own(argument: Any) -> Any:
    """A copy, of what can be changed."""
    return argument if type(argument) in _UNCHANGEABLE else deepcopy(argument)


class _Again(Exception):
    """Another attempt follows, at `at`."""

    def __init__(self, at: Millis) -> None:
        super().__init__()
        self.at = at


class _Late(Exception):
    """The lease may have ended before the thread began."""


@coroutine
def _in_context(context: Context, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Awaits `work` in this task, with context variables of its own: what it sets is not seen by the code that awaits
    it, which would not see it after a crash either."""
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            awaited = context.run(step, value)
        except StopIteration as stop:
            return stop.value
        try:
            step, value = work.send, (yield awaited)
        except GeneratorExit:
            context.run(work.close)
            raise
        except BaseException as error:
            step, value = work.throw, error


async def _until_done(future: asyncio.Future[Any]) -> None:
    """Waits for a thread, which can't be stopped, through any number of cancellations."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue


def _has_value(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _is_kept(kept: Checkpoint, error: type[PerdureError]) -> bool:
    """Whether it is of an error of that type."""
    return kept.body is not None and decode_failure(kept.body).type == kept_type(error)


def _kept_cut_off(kept: Checkpoint) -> StepCutOff | None:
    """What is kept of an attempt that was cut off."""
    if not _is_kept(kept, StepCutOff):
        return None
    error = rebuild(decode_failure(kept.body or "null"))
    return error if isinstance(error, StepCutOff) else None


def _outcome(step: StepDefinition, kept: Checkpoint) -> Any:
    """The value that was kept, or raises the error that was."""
    if kept.outcome is Outcome.OK:
        return step.signature.returns.decode(kept.body or "null")
    raise raised_by(_raised_before(kept.key, kept.body), step.name)


def _raised_before(key: str, body: Json | None) -> BaseException:
    info = decode_failure(body or "null")
    return rebuild(info) or StepFailed(key, info)
