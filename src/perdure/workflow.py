"""Workflows: plain functions whose runs survive what stops their worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import update_wrapper
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, cast

from perdure.call import Call
from perdure.clock import epoch_millis, millis
from perdure.engine.definitions import WorkflowDefinition
from perdure.engine.execution import ContinueAsNew
from perdure.engine.scope import Scope, scope_here, scope_needed
from perdure.engine.waits import child_id, result_of, start_child
from perdure.errors import IdConflict, InvalidInput, NotInWorkflow
from perdure.model import Millis, Start, Started
from perdure.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.app import App

P = ParamSpec("P")
R = TypeVar("R")

_BATCH = 1000
"""Runs that one call to the store makes, so that a start of very many does not hold up everybody else's writes."""


@dataclass(frozen=True)
class StartOptions:
    """What holds for one start, where it differs from the workflow."""

    id: str | None = None
    queue: str | None = None
    priority: int | None = None
    delay: Millis | None = None
    at: Millis | None = None
    timeout: Millis | None = None


class Workflow(Generic[P, R]):
    """A workflow of an app, made by `@app.workflow`.

    `start` makes a run and gives a handle on it; `run` also waits for its result. Called, it is the plain function.
    """

    def __init__(self, app: App, fn: Callable[P, Any], definition: WorkflowDefinition) -> None:
        self.fn = fn
        self.definition = definition
        self._app = app
        update_wrapper(cast("Callable[..., Any]", self), fn)

    @property
    def name(self) -> str:
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.fn(*args, **kwargs)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Call[Run[R]]:
        """Makes a run; the handle comes back once the run is durable. Inside of a workflow it is a child run.

        Raises `InvalidInput` (arguments that don't fit), `EncodingError`, `ValueTooLarge`.

            run = await fulfil.start(order)
        """
        return StartCall(self, StartOptions()).start(*args, **kwargs)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Makes a run and waits for its result: `start` and `result` in one."""
        return StartCall(self, StartOptions()).run(*args, **kwargs)

    def start_many(self, inputs: Iterable[Any]) -> Call[list[Run[R]]]:
        """Makes a run for each item, in few calls to the store: thousands take well under a second.

        An item is the workflow's only argument, or a tuple of its arguments. The order of the handles is that of the
        items. When one item doesn't fit, none is started.

            runs = await parse.start_many(paths)
        """
        return StartCall(self, StartOptions()).start_many(inputs)

    def options(
        self,
        *,
        id: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        timeout: timedelta | float | None = None,
    ) -> StartCall[P, R]:
        """Options for a start: `fulfil.options(id="order-7").start(order)`.

        - `id`: makes the start idempotent. The same id is the same run: a second start gives a handle on it with
          `existed` set, and raises `IdConflict` if its workflow or input differ.
        - `queue`: another one than the workflow's.
        - `priority`: lower numbers run first.
        - `delay` (seconds or a timedelta) or `at` (an aware datetime): not before then.
        - `timeout`: seconds or a timedelta, from the time that it may start, in which the run must end; then it is
          cancelled and fails with `DeadlineExceeded`.

        Raises `InvalidInput` at once.
        """
        if delay is not None and at is not None:
            raise InvalidInput("give delay= or at=, not both")
        if id is not None:
            _check_id(id)
        if queue is not None:
            check_queue(queue)
        if priority is not None:
            check_priority(priority)
        return StartCall(
            self,
            StartOptions(
                id,
                queue,
                priority,
                None if delay is None else millis(delay, "delay"),
                None if at is None else epoch_millis(at, "at"),
                None if timeout is None else millis(timeout, "timeout"),
            ),
        )

    def get(self, run_id: str) -> Run[R]:
        """A handle on a run of this workflow, typed by its result."""
        return self._app.handle(run_id, self)

    def continue_as_new(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """Ends this attempt and begins the run anew with other arguments, under the same id, with no history.

        For runs that go on for ever, such as a poller: it keeps their history short. Only in the workflow itself.

            poll.continue_as_new(cursor)
        """
        scope = scope_needed("continue_as_new()")
        if scope.execution.definition is not self.definition or scope.step_key is not None:
            raise NotInWorkflow(
                f"{self.name}.continue_as_new() works in a run of workflow {self.name} itself, not in a step"
            )
        raise ContinueAsNew(self.definition.signature.encode(args, kwargs, self._app.max_value_bytes))

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    # --- for StartCall

    @property
    def app(self) -> App:
        return self._app


class StartCall(Generic[P, R]):
    """A workflow with options for its next start: see `Workflow.options`."""

    def __init__(self, workflow: Workflow[P, R], options: StartOptions) -> None:
        self._workflow = workflow
        self._options = options

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Call[Run[R]]:
        """See `Workflow.start`."""
        start = self._start(args, kwargs)
        scope = _workflow_scope()
        what = f"start of {self._workflow.name}"
        if scope is None:
            return Call(lambda: self._started([start], one=True), what)
        child = self._child(scope, start)
        return Call(lambda: self._start_child(scope, *child), what, scope.execution)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """See `Workflow.run`."""
        start = self._start(args, kwargs)
        scope = _workflow_scope()
        what = f"run of {self._workflow.name}"
        if scope is None:

            async def run() -> R:
                return await (await self._started([start], one=True)).result()

            return Call(run, what)
        key, child = self._child(scope, start)
        result_key = scope.key(f"{key.removeprefix(scope.prefix)}.result")

        async def run_child() -> R:
            handle = await self._start_child(scope, key, child)
            decoder = self._workflow.definition.signature.returns
            return await result_of(scope.execution, result_key, handle.id, decoder, child_key=key)

        return Call(run_child, what, scope.execution)

    def start_many(self, inputs: Iterable[Any]) -> Call[list[Run[R]]]:
        """See `Workflow.start_many`."""
        if self._options.id is not None:
            raise InvalidInput("start_many makes many runs: one id can't name them all")
        several = len(self._workflow.definition.signature.names) != 1
        starts: list[Start] = []
        for number, item in enumerate(cast("Iterable[object]", inputs)):
            if several and not isinstance(item, tuple):
                raise InvalidInput(
                    f"item {number} of start_many must be a tuple of the arguments of workflow {self._workflow.name}"
                )
            arguments = cast("tuple[Any, ...]", item if several else (item,))
            try:
                starts.append(self._start(arguments, {}))
            except InvalidInput as error:
                error.add_note(f"at item {number} of start_many; no run was started")
                raise
        what = f"start_many of {self._workflow.name}"
        scope = _workflow_scope()
        if scope is None:
            return Call(lambda: self._started_many(starts), what)
        children = [self._child(scope, start) for start in starts]

        async def start_children() -> list[Run[R]]:
            return await asyncio.gather(*(self._start_child(scope, *child) for child in children))

        return Call(start_children, what, scope.execution)

    # ---

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Start:
        workflow, options = self._workflow, self._options
        definition = workflow.definition
        return Start(
            options.id if options.id is not None else token_hex(12),
            definition.name,
            definition.queue if options.queue is None else options.queue,
            definition.signature.encode(args, kwargs, workflow.app.max_value_bytes),
            priority=definition.priority if options.priority is None else options.priority,
            at=options.at,
            delay=options.delay,
            timeout=definition.timeout if options.timeout is None else options.timeout,
            max_crashes=definition.max_crashes,
        )

    def _child(self, scope: Scope, start: Start) -> tuple[str, Start]:
        key = scope.key(self._workflow.name)
        if self._options.id is None:
            start.id = child_id(scope.execution, key)
        start.parent = scope.execution.claim.id
        return key, start

    async def _start_child(self, scope: Scope, key: str, start: Start) -> Run[R]:
        run_id = await start_child(scope.execution, key, start)
        return self._workflow.app.handle(run_id, self._workflow, child_key=key)

    async def _started(self, starts: Sequence[Start], *, one: bool) -> Run[R]:
        return (await self._started_many(starts))[0]

    async def _started_many(self, starts: Sequence[Start]) -> list[Run[R]]:
        app = self._workflow.app
        store = await app.client.store()
        runs: list[Run[R]] = []
        for first in range(0, len(starts), _BATCH):
            for started in await store.enqueue(starts[first : first + _BATCH]):
                _check_same(started, self._workflow.name)
                runs.append(app.handle(started.id, self._workflow, existed=started.existed))
        return runs


def _workflow_scope() -> Scope | None:
    """The scope of workflow code. In a step a start is a plain one: the step is what's kept, not what it starts."""
    scope = scope_here()
    return None if scope is None or scope.step_key is not None else scope


def _check_same(started: Started, name: str) -> None:
    if started.existed and not started.same:
        raise IdConflict(
            f"run {started.id!r} exists with another workflow or input than this start of {name}; an id names one piece"
            " of work for ever: use another id, or app.run(id) for the one that exists"
        )


def _check_id(run_id: str) -> None:
    if not isinstance(run_id, str) or not 0 < len(run_id) <= 200 or not run_id.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"an id is a string of 1 to 200 printable characters, not {run_id!r}")


def check_queue(queue: str) -> str:
    """The name of a queue, or `InvalidInput`."""
    if not isinstance(queue, str) or not 0 < len(queue) <= 200 or not queue.isprintable() or "," in queue:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"a queue's name is a string of 1 to 200 printable characters without commas, not {queue!r}")
    return queue


def check_priority(priority: int) -> int:
    """A priority, or `InvalidInput`."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not -(2**31) <= priority < 2**31:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"a priority is a whole number of 32 bits (lower runs first), not {priority!r}")
    return priority


__all__ = ["StartCall", "StartOptions", "Workflow", "check_priority", "check_queue"]
