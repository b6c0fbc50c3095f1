"""Steps: functions whose outcome is kept, so that they don't run again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from perdure.call import Call
from perdure.clock import time_limit
from perdure.engine.commits import call, call_async
from perdure.engine.definitions import (
    StepDefinition,
    check_not_defined,
    check_step,
    check_takes_connection,
    function_name,
)
from perdure.engine.scope import Scope, check_key, scope_here
from perdure.engine.steps import run_step
from perdure.errors import DefinitionError
from perdure.retry import Retry, check_retry

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class Step(Generic[P, R]):
    """A function made into a step by `@step`.

    Called inside of a run it is checkpointed: its value (or final exception) is kept, and a later attempt of the run
    gets that instead of running it again. Called anywhere else it is the plain function, which `fn` is too.
    """

    def __init__(self, fn: Callable[P, Any], definition: StepDefinition) -> None:
        self.fn = fn
        self.definition = definition
        update_wrapper(cast("Callable[..., Any]", self), fn)

    @property
    def name(self) -> str:
        """What its checkpoints are found by: that of the function, or what `name=` says."""
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        scope = scope_here()
        if scope is None:
            return self._plain(args, kwargs)
        return self._call(scope, scope.key(self.definition.name), args, kwargs)

    def options(self, *, key: str) -> KeyedStep[P, R]:
        """The step with a key of your own instead of a number by order of calls: for loops whose order may change.

        Within one run (or enclosing step) each key can be used once.

            for file in listing:                                  # in whatever order it comes
                await parse.options(key=file.name)(file)
        """
        return KeyedStep(self, check_key(key))

    def _call(self, scope: Scope, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R]:
        execution = scope.execution
        definition = self.definition
        if execution.runtime.steps.get(definition.name) is not definition:
            check_step(execution.runtime.steps, definition)
        return Call(lambda: run_step(execution, scope, definition, key, args, kwargs), f"step {key}", execution)

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call outside of a run."""
        transaction = self.definition.transaction
        if transaction is None:
            return self.fn(*args, **kwargs)
        return (call_async if self.definition.is_async else call)(transaction, self.definition, args, kwargs)

    def __repr__(self) -> str:
        return f"<step {self.definition.name}>"


class KeyedStep(Generic[P, R]):
    """A step to be called under a key of its own: see `Step.options`."""

    def __init__(self, step: Step[P, R], key: str) -> None:
        self._step = step
        self._key = key

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        scope = scope_here()
        if scope is None:
            return self._step._plain(args, kwargs)  # pyright: ignore[reportPrivateUsage]
        return self._step._call(scope, scope.named(f"{self._step.name}[{self._key}]"), args, kwargs)  # pyright: ignore[reportPrivateUsage]


class StepDecorator:
    """What `@step(…)` with arguments gives."""

    def __init__(self, name: str | None, retry: Retry | None, timeout: timedelta | float | None, process: bool) -> None:
        self._name = name
        self._retry = check_retry(retry)
        self._timeout = time_limit(timeout)
        self._process = process

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, fn: Callable[P, Any], /) -> Step[P, Any]:
        if isinstance(fn, Step) or not callable(fn):
            raise DefinitionError(f"@step goes on a function, not on {fn!r}")
        definition = StepDefinition(
            function_name(fn, self._name, "step"), fn, self._retry, self._timeout, self._process
        )
        if self._process and definition.is_async:
            raise DefinitionError(f"step {definition.name}: process=True is for plain functions, not for async ones")
        check_not_defined(definition)
        return Step(fn, definition)


class TransactionDecorator(Generic[C]):
    """What `@step(transaction=…)` gives."""

    def __init__(
        self,
        transaction: Callable[[], AbstractAsyncContextManager[C] | AbstractContextManager[C]],
        name: str | None,
        retry: Retry | None,
        timeout: timedelta | float | None,
    ) -> None:
        self._transaction = transaction
        self._name = name
        self._retry = check_retry(retry)
        self._timeout = time_limit(timeout)

    @overload
    def __call__(self, fn: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[C, P], R], /) -> Step[P, R]: ...
    def __call__(self, fn: Callable[Concatenate[C, P], Any], /) -> Step[P, Any]:
        if isinstance(fn, Step) or not callable(fn):
            raise DefinitionError(f"@step goes on a function, not on {fn!r}")
        name = function_name(fn, self._name, "step")
        if not callable(self._transaction):
            raise DefinitionError(
                f"step {name}: transaction= is a function that opens a transaction, such as an engine's begin; not"
                f" {self._transaction!r}"
            )
        definition = StepDefinition(name, fn, self._retry, self._timeout, process=False, transaction=self._transaction)
        check_takes_connection(definition)
        check_not_defined(definition)
        return Step(cast("Callable[..., Any]", fn), definition)


@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    transaction: Callable[[], AbstractAsyncContextManager[C] | AbstractContextManager[C]],
    name: str | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float | None = None,
) -> TransactionDecorator[C]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float | None = None,
    process: bool = False,
) -> StepDecorator: ...
def step(
    fn: Callable[P, Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float | None = None,
    process: bool = False,
    transaction: Callable[[], Any] | None = None,
) -> Step[P, Any] | StepDecorator | TransactionDecorator[Any]:
    """Makes a function a step of workflows.

    Guarantees: a step whose checkpoint is saved never runs again in its run. One that was cut off by a crash runs
    again, so its effect may happen more than once: give what it calls a key of its own (`current_run().id` and the
    step's arguments make one). With a `retry`, an attempt that a crash cut off counts as one.

    Arguments and result travel as JSON, read by the function's annotations.

    - `name`: under which its checkpoints are found; the function's name when not given. Renaming a step makes runs in
      flight run it again. Two of one name, which workflows of one app get to, are refused when a worker starts.
    - `retry`: what to do when it raises; without it the first exception is final and goes to the workflow.
    - `timeout`: seconds or a timedelta for one attempt; then it fails with `StepTimedOut`. Async code is cancelled, a
      process is killed, sync code is told by `current_run().cancelling` and waited for.
    - `process`: runs it (a plain function at the top level of a module) in a process of its own; needs
      `pip install 'perdure[process]'`.
    - `transaction`: opens a transaction on your own database, in which the store is too (PostgreSQL): a function that
      gives a context manager (async for an async step) which yields a connection or session and commits at its end.
      The step gets that as its first argument, and callers leave it out. What the step writes with it and its
      checkpoint are committed together, so the effect happens exactly once, whatever crashes.

    A plain function runs in a thread.

        @step(retry=Retry(attempts=5), timeout=30)
        async def charge(order_id: str, cents: int) -> str: ...
    """
    if transaction is not None:
        if process:
            raise DefinitionError("@step: a transaction can't be taken to another process: leave out process=")
        return TransactionDecorator(transaction, name, retry, timeout)
    decorator = StepDecorator(name, retry, timeout, process)
    return decorator if fn is None else decorator(fn)
