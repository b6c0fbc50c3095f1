"""How a step runs: its kept outcome if there is one, else attempts until there is one."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.codec import encode
from perdure.engine.definitions import StepDefinition
from perdure.engine.execution import Execution
from perdure.engine.interrupts import is_ctrl_c
from perdure.engine.points import Point
from perdure.engine.scope import Scope, enter
from perdure.errors import DecodingError, EncodingError, StepCutOff, StepFailed, StepTimedOut, ValueTooLarge
from perdure.failures import decode_failure, describe, encode_failure, raised_by, rebuild
from perdure.model import Checkpoint, Json, Kind, Millis, Outcome, Wait, WaitFor

_HOPELESS = (EncodingError, ValueTooLarge, DecodingError)


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
    if saved is not None and saved.outcome is not Outcome.OPEN:
        await execution.replay(saved.saved_at, saved.position)
        if saved.outcome is Outcome.OK:
            return step.signature.returns.decode(saved.body or "null")
        raise raised_by(_raised_before(key, saved.body), step.name)
    return await _Attempts(execution, scope, step, key, args, kwargs, arguments, digest).run(saved)


class _Attempts:
    """The attempts of one step that has no outcome yet."""

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
    ) -> None:
        self.execution = execution
        self.scope = scope
        self.step = step
        self.key = key
        self.args = args
        self.kwargs = kwargs
        self.arguments = arguments
        self.digest = digest
        self.started_at: Millis = 0

    async def run(self, saved: Checkpoint | None) -> Any:
        execution = self.execution
        attempt = 1
        if saved is not None:
            attempt = saved.attempts + 1
            if saved.at is not None and saved.at > execution.now():
                await self._back_off(saved.at)
        await execution.live()
        if execution.claim.cut_off and not execution.progressed:
            with execution.in_flight():
                attempt = await self._count_cut_off(attempt)
        while True:
            with execution.in_flight(self.key):
                try:
                    return await self._try(attempt)
                except _Again as again:
                    at = again.at
            await self._back_off(at)
            attempt += 1

    async def _try(self, attempt: int) -> Any:
        """One attempt: returns the value, raises what is final, or `_Again`."""
        execution = self.execution
        execution.tap(Point.BEFORE_STEP, self.key)
        self.started_at = execution.now()
        try:
            value = await self._invoke(attempt)
            execution.tap(Point.AFTER_EFFECT, self.key)
            body = encode(value, f"the result of step {self.key}", execution.runtime.max_value_bytes)
            result = self.step.signature.returns.decode(body)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            if execution.over:
                raise asyncio.CancelledError from None
            await self._failed(attempt, error)
            raise
        await self._save(Outcome.OK, body, attempt)
        execution.tap(Point.AFTER_CHECKPOINT, self.key)
        # Decoded, so that the workflow sees now what it would see after a crash.
        return result

    async def _failed(self, attempt: int, error: BaseException) -> None:
        """Keeps a failure; returns when the error itself is to be raised."""
        retry = self.step.retry
        if (
            retry is not None
            and retry.allows(attempt)
            and retry.covers(error)
            and not isinstance(error, _HOPELESS)
            and self.execution.cancelling is None
        ):
            at = self.execution.now() + retry.delay_after(attempt, self.execution.runtime.random())
            await self._save(Outcome.OPEN, encode_failure(error), attempt, at)
            raise _Again(at)
        info = describe(error)
        raised_by(error, self.step.name)
        await self._save(Outcome.ERROR, encode_failure(error), attempt)
        if rebuild(info) is None:
            # After a crash it could not be made again, and code that catches it would take another way than now.
            raise raised_by(StepFailed(self.key, info), self.step.name) from error

    async def _invoke(self, attempt: int) -> Any:
        step, execution = self.step, self.execution
        inner = Scope(
            execution,
            asyncio.current_task() if step.is_async else None,
            f"{self.key}/",
            depth=self.scope.depth + 1,
            step_key=self.key,
            step_attempt=attempt,
        )
        if step.timeout is None:
            return await self._call(inner)
        limit = asyncio.timeout(None)
        alarm = execution.runtime.clock.call_at(
            self.started_at + step.timeout, lambda: limit.reschedule(execution.runtime.loop.time())
        )
        try:
            async with limit:
                return await self._call(inner)
        except TimeoutError:
            if limit.expired():
                raise StepTimedOut(f"step {self.key} took longer than its timeout of {step.timeout} ms") from None
            raise
        finally:
            alarm.cancel()

    async def _call(self, inner: Scope) -> Any:
        step = self.step
        if step.process:
            return await self.execution.runtime.processes.run(step.fn, self.arguments)
        if step.is_async:
            enter(inner)
            try:
                return await step.fn(*self.args, **self.kwargs)
            finally:
                enter(self.scope)
        future = self.execution.in_thread(inner, lambda: step.fn(*self.args, **self.kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            inner.cancelled = True  # what the thread sees
            if not self.execution.over:
                await _until_done(future)
            raise

    async def _back_off(self, at: Millis) -> None:
        await self.execution.wait(Wait(f"{self.key}.retry", WaitFor.TIMER, at=at))

    async def _count_cut_off(self, attempt: int) -> int:
        """The worker died in the attempt before, and nothing has completed since: it is this step, or one beside it,
        that was cut off (or about to begin). That attempt counts."""
        error = StepCutOff(f"attempt {attempt} of step {self.key} was cut off when its worker died")
        retry = self.step.retry
        final = retry is not None and not retry.allows(attempt)
        await self._save(Outcome.ERROR if final else Outcome.OPEN, encode_failure(error), attempt)
        if final:
            raise raised_by(error, self.step.name)
        return attempt + 1

    async def _save(self, outcome: Outcome, body: Json, attempt: int, at: Millis | None = None) -> None:
        await self.execution.save(
            Checkpoint(
                self.key,
                Kind.STEP,
                outcome,
                body,
                attempts=attempt,
                digest=self.digest,
                at=at,
                started_at=self.started_at,
            )
        )


class _Again(Exception):
    """Another attempt follows, at `at`."""

    def __init__(self, at: Millis) -> None:
        super().__init__()
        self.at = at


async def _until_done(future: asyncio.Future[Any]) -> None:
    """Waits for a thread, which can't be stopped, through any number of cancellations."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue


def _raised_before(key: str, body: Json | None) -> BaseException:
    info = decode_failure(body or "null")
    return rebuild(info) or StepFailed(key, info)
