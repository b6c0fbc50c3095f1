"""Workflows: plain functions whose runs survive what stops their worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from functools import update_wrapper
from os import urandom
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, cast, overload

from perdure.batch import Batch
from perdure.call import Call
from perdure.engine.definitions import Key, WorkflowDefinition, function_name
from perdure.engine.halt import ContinueAsNew
from perdure.engine.scope import Scope, holds_slot, scope_needed, wait_in_step, workflow_scope
from perdure.engine.waits import Child, child_id, open_batch, result_of, start_child
from perdure.errors import DefinitionError, InvalidInput, NotInWorkflow, id_conflict
from perdure.model import OnConflict, Start, Started, Unique
from perdure.options import StartOptions, check_id, check_text, key_of, start_options
from perdure.run import Run
from perdure.signature import short_hash
from perdure.step import Step
from perdure.stores.base import Within
from perdure.stores.shared.chunks import in_chunks
from perdure.transactions import call_within

if TYPE_CHECKING:
    from perdure.app import App

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_ID_BYTES = 12
_MANY = 1000
"""The most runs of one call to the store, so that a start of very many does not hold up everybody else's writes."""


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
        """What its runs are kept under: that of the function, or what `name=` says."""
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

    def start_many(self, inputs: Iterable[Any], *, ids: Iterable[str] | None = None) -> Call[list[Run[R]]]:
        """Makes a run for each item, in few calls to the store: thousands take well under a second.

        An item is the workflow's only argument, or a tuple of its arguments. The order of the handles is that of the
        items. When one item doesn't fit, none is started. `ids`, one for each item, make it idempotent as `id` does one
        start: repeated, it makes what is not there yet.

            runs = await parse.start_many(paths)
        """
        return StartCall(self, StartOptions()).start_many(inputs, ids=ids)

    def start_batch(self, inputs: Iterable[Any], *, callback: Workflow[[str], Any] | None = None) -> Call[Batch[R]]:
        """Makes a run for each item, as `start_many` does, and a handle on them all: a batch.

        All of the runs are made, or none. `callback` is a workflow that is started, with the batch's id as its
        argument, when all of them have ended, however they ended; exactly once. `options(id=…)` makes the start of the
        batch idempotent. Raises `InvalidInput`, and `IdConflict` when an id of the batch is that of another run.

            batch = await parse.start_batch(paths, callback=report)
            async for run in batch.ended():
                ...
        """
        return StartCall(self, StartOptions()).start_batch(inputs, callback=callback)

    def options(
        self,
        *,
        id: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        timeout: timedelta | float | None = None,
        group: str | None = None,
        session: str | None = None,
        unique: str | None = None,
        on_conflict: OnConflict | str = OnConflict.EXISTING,
        debounce: timedelta | float | None = None,
        throttle: timedelta | float | None = None,
        labels: dict[str, str] | None = None,
        transaction: object | None = None,
    ) -> StartCall[P, R]:
        """Options for a start: `fulfil.options(id="order-7").start(order)`.

        - `id`: makes the start idempotent. The same id is the same run: a second start gives a handle on it with
          `existed` set, and raises `IdConflict` if its workflow or input differ.
        - `queue`: another one than the workflow's; `UnknownQueue` when the app declares its queues without it.
        - `priority`: lower numbers run first.
        - `delay` (seconds or a timedelta) or `at` (an aware datetime): not before then.
        - `timeout`: seconds or a timedelta, from the time that it may start, in which the run must end; then it is
          cancelled and fails with `DeadlineExceeded`. It may start when its delay is over, the callback of a batch when
          that is done, and a run of a schedule that waits for the one before it when that has ended. From then on the
          time runs, also while the run waits for a worker, for its turn in its group, or in a paused queue.
        - `group`: runs of one group and queue go one after the other, in order (or as many at a time as the workflow's
          `group_limit` or the stored limit says); groups take turns.
        - `session`: ties the run to the worker that holds something for that session; the first one that takes a run
          of it owns it.
        - `unique`: one live run per key of this workflow. A second start gives a handle on the first with `existed`
          set; with `on_conflict="replace"` a run that has not begun takes the new input, delay and timeout. All else of
          it (group, session, queue, priority, labels, version) stays as the first start said. The key is free when the
          run ends, however it ends.
        - `debounce` (seconds or a timedelta, with `unique`): each start puts the run that has not begun off to that
          long from now, with the latest input.
        - `throttle` (seconds or a timedelta, with `unique`): at most one start in that time; another one gives the
          first one's handle, even when it has ended.
        - `labels`: small texts by which runs can be listed.
        - `transaction`: a connection or session of your own to the database in which the store is (PostgreSQL), with
          a transaction: of psycopg, asyncpg, SQLAlchemy or Django. The run is there when you commit, and never was
          when you roll back. Goes with `start` and `start_many`. On a sync connection say `.wait()`, on an async one
          `await`. What the driver raises is left as it is.

        Raises `InvalidInput` at once.
        """
        options = start_options(
            id=id,
            queue=None if queue is None else self._app.known_queue(queue),
            priority=priority,
            delay=delay,
            at=at,
            timeout=timeout,
            group=group,
            session=session,
            unique=unique,
            on_conflict=on_conflict,
            debounce=debounce,
            throttle=throttle,
            labels=labels,
            transaction=transaction,
            has_key=self.definition.unique is not None,
        )
        return StartCall(self, options)

    def make_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Start:
        """The start that a call with these arguments would be."""
        return StartCall(self, StartOptions()).make_start(args, kwargs)

    def make_recurring(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Start:
        """The start of a schedule with these arguments."""
        return self.make_start(args, kwargs)

    def get(self, run_id: str) -> Run[R]:
        """A handle on a run of this workflow, typed by its result."""
        return self._app.handle(check_text(run_id, "the id of a run"), self)

    def get_batch(self, batch_id: str) -> Batch[R]:
        """A handle on a batch of runs of this workflow, typed by their results."""
        return Batch(self._app.client, check_text(batch_id, "the id of a batch"), self.get)

    def continue_as_new(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """Ends this attempt and begins the run anew with other arguments, under the same id, with no history.

        For runs that go on for ever, such as a poller: it keeps their history short. Only in the workflow itself.

            poll.continue_as_new(cursor)
        """
        scope = scope_needed("continue_as_new()")
        if scope.execution.definition is not self.definition or scope.attempt is not None:
            raise NotInWorkflow(
                f"{self.name}.continue_as_new() works in a run of workflow {self.name} itself, not in a step"
            )
        raise ContinueAsNew(self.definition.signature.encode(args, kwargs, self._app.max_value_bytes))

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    @property
    def app(self) -> App:
        """The app that it is a workflow of."""
        return self._app


class StartCall(Generic[P, R]):
    """A workflow with options for its next start: see `Workflow.options`."""

    def __init__(self, workflow: Workflow[P, R], options: StartOptions) -> None:
        self._workflow = workflow
        self._options = options

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Call[Run[R]]:
        """See `Workflow.start`."""
        start = self.make_start(args, kwargs)
        scope = self._scope()
        what = f"start of {self._workflow.name}"
        if self._options.transaction is not None:
            return self._within(scope, what, lambda within: self._started_one(start, within))
        if scope is None:
            return Call(lambda: self._started_one(start), what)
        child = self._child(scope, start, args, kwargs)
        return Call(lambda: self._start_child(scope, *child), what, scope.execution)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """See `Workflow.run`."""
        start = self.make_start(args, kwargs)
        scope = self._scope()
        what = f"run of {self._workflow.name}"
        self._refuse_transaction(f"{what}: it can't end before you commit; start it, and ask for its result after that")
        if scope is None and holds_slot(self._workflow.app.client):
            raise wait_in_step(f"run() of workflow {self._workflow.name}")
        if scope is None:

            async def run() -> R:
                return await (await self._started_one(start)).result()

            return Call(run, what)
        child, _ = self._child(scope, start, args, kwargs)
        result_key = scope.key(f"{child.key.removeprefix(scope.prefix)}.result")

        async def run_child() -> R:
            handle = await self._start_child(scope, child, start, awaited=True)
            decoder = self._workflow.definition.signature.returns
            return await result_of(scope.execution, result_key, handle.id, decoder, child=child)

        return Call(run_child, what, scope.execution)

    def start_many(self, inputs: Iterable[Any], *, ids: Iterable[str] | None = None) -> Call[list[Run[R]]]:
        """See `Workflow.start_many`."""
        if self._options.id is not None:
            raise InvalidInput("start_many makes many runs, which one id can't name: give it ids=, one for each item")
        items = self._items(inputs, "start_many")
        starts = self._make_many(items, "start_many")
        if ids is not None:
            _give_ids(starts, ids)
        what = f"start_many of {self._workflow.name}"
        scope = self._scope()
        if self._options.transaction is not None:
            return self._within(scope, what, lambda within: self._started(starts, within))
        if scope is None:
            return Call(lambda: self._started(starts), what)
        children = [
            self._child(scope, start, args, {}, named=ids is not None)
            for start, args in zip(starts, items, strict=True)
        ]

        async def start_children() -> list[Run[R]]:
            return await asyncio.gather(
                *(self._start_child(scope, *child, named=ids is not None) for child in children)
            )

        return Call(start_children, what, scope.execution)

    def start_batch(self, inputs: Iterable[Any], *, callback: Workflow[[str], Any] | None = None) -> Call[Batch[R]]:
        """See `Workflow.start_batch`."""
        workflow, options = self._workflow, self._options
        self._refuse_transaction(
            "start_batch makes a batch in a transaction of its own; start_many can be part of yours"
        )
        if options.unique is not None or workflow.definition.unique is not None:
            raise InvalidInput(f"runs of a batch are its own, so they can't have a unique key: {workflow.name}")
        if callback is not None and not isinstance(callback, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"callback= is a workflow of the app, not {callback!r}")
        if callback is not None and callback.definition.unique is not None:
            raise InvalidInput(f"a batch calls back once, so its callback can't have a unique key: {callback.name}")
        items = self._items(inputs, "start_batch")
        starts = self._make_many(items, "start_batch")
        what = f"start_batch of {workflow.name}"
        scope = self._scope()
        if scope is None:
            batch_id = urandom(_ID_BYTES).hex() if options.id is None else options.id
            return Call(lambda: self._open_batch(batch_id, starts, callback), what)
        key = scope.key(f"{workflow.name}.batch")
        batch_id = child_id(scope.execution, key) if options.id is None else options.id
        parent = scope.execution.claim.id
        digest = short_hash("".join(self._digest(args, {}) for args in items))

        async def open_child_batch() -> Batch[R]:
            opened = await open_batch(
                scope.execution,
                key,
                digest,
                batch_id,
                lambda batch: self._open_batch(batch, starts, callback, parent),
            )
            return Batch(workflow.app.client, opened, workflow.get, existed=None if options.id is not None else False)

        return Call(open_child_batch, what, scope.execution)

    # ---

    @property
    def app(self) -> App:
        """The app of the workflow."""
        return self._workflow.app

    def __repr__(self) -> str:
        return repr(self._workflow)

    def make_start(self, args: tuple[Any, ...], kwargs: dict[str, Any], new_id: str | None = None) -> Start:
        """The start that a call with these arguments would be; `new_id` is for one that was given none."""
        workflow, options = self._workflow, self._options
        definition = workflow.definition
        return Start(
            options.id if options.id is not None else new_id or urandom(_ID_BYTES).hex(),
            definition.name,
            definition.queue if options.queue is None else options.queue,
            definition.signature.encode(args, kwargs, workflow.app.max_value_bytes),
            priority=definition.priority if options.priority is None else options.priority,
            at=options.at,
            delay=options.delay,
            timeout=definition.timeout if options.timeout is None else options.timeout,
            max_crashes=definition.max_crashes,
            version=definition.version,
            group=self._key(options.group, definition.group, "a group", args, kwargs),
            group_limit=definition.group_limit,
            group_keep=definition.group_keep,
            session=self._key(options.session, definition.session, "a session", args, kwargs),
            unique=self._unique(args, kwargs),
            labels=options.labels or {},
        )

    def make_recurring(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Start:
        """The start of a schedule, which gives its runs their ids and times."""
        given = [name for name in ("id", "at", "delay", "transaction") if getattr(self._options, name) is not None]
        if given:
            raise InvalidInput(
                f"a schedule gives its runs their ids and times: leave out {', '.join(f'{name}=' for name in given)}"
            )
        return self.make_start(args, kwargs)

    def _within(self, scope: Scope | None, what: str, work: Callable[[Within], Coroutine[Any, Any, T]]) -> Call[T]:
        return call_within(self._workflow.app.client, self._options.transaction, scope, what, work)

    def _refuse_transaction(self, reason: str) -> None:
        if self._options.transaction is not None:
            raise InvalidInput(f"transaction= does not go with {reason}")

    def _scope(self) -> Scope | None:
        return workflow_scope(self._workflow.app.client, f"workflow {self._workflow.name}")

    def _unique(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Unique | None:
        options, definition = self._options, self._workflow.definition
        key = self._key(options.unique, definition.unique, "a unique key", args, kwargs)
        return Unique(key, options.on_conflict, options.period) if key else None

    def _key(
        self, given: str | None, declared: Key | None, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        key = declared if given is None else given
        return "" if key is None else key_of(key, what, self._workflow.name, args, kwargs)

    def _child(
        self, scope: Scope, start: Start, args: tuple[Any, ...], kwargs: dict[str, Any], *, named: bool = False
    ) -> tuple[Child, Start]:
        key = scope.key(self._workflow.name)
        if self._options.id is None and not named:
            start.id = child_id(scope.execution, key)
        start.parent = scope.execution.claim.id
        return Child(key, self._digest(args, kwargs)), start

    def _digest(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """A hash of the arguments, by which a replay that has others is noticed."""
        return self._workflow.definition.signature.digest(args, kwargs, self._workflow.app.max_value_bytes)[1]

    async def _start_child(
        self, scope: Scope, child: Child, start: Start, *, awaited: bool = False, named: bool = False
    ) -> Run[R]:
        run_id = await start_child(scope.execution, child, start, awaited=awaited)
        if named or self._options.id is not None:
            existed = True if run_id != start.id else None  # the checkpoint says which run it is, and nothing more
        else:
            existed = not run_id.startswith(f"{start.parent}/{child.key}.")
        return self._workflow.app.handle(run_id, self._workflow, existed=existed, child=child)

    async def _started_one(self, start: Start, within: Within | None = None) -> Run[R]:
        return (await self._started([start], within))[0]

    async def _started(self, starts: Sequence[Start], within: Within | None = None) -> list[Run[R]]:
        app = self._workflow.app
        runs: list[Run[R]] = []
        for chunk in in_chunks(starts, _MANY):
            for started in await (within or app.client).enqueue(chunk):
                _check_same(started, self._workflow.name)
                runs.append(app.handle(started.id, self._workflow, existed=started.existed))
        return runs

    def _items(self, inputs: Iterable[Any], what: str) -> list[tuple[Any, ...]]:
        """The arguments of each run of many."""
        if not isinstance(inputs, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"{what} takes the items to make runs for, not {inputs!r}")
        if len(self._workflow.definition.signature.names) == 1:
            return [(item,) for item in inputs]
        items = list(cast("Iterable[object]", inputs))
        for number, item in enumerate(items):
            if not isinstance(item, tuple):
                raise InvalidInput(
                    f"item {number} of {what} must be a tuple of the arguments of workflow {self._workflow.name}"
                )
        return cast("list[tuple[Any, ...]]", items)

    def _make_many(self, items: list[tuple[Any, ...]], what: str) -> list[Start]:
        starts: list[Start] = []
        ids, length = urandom(_ID_BYTES * len(items)).hex(), 2 * _ID_BYTES
        for number, arguments in enumerate(items):
            try:
                starts.append(self.make_start(arguments, {}, ids[number * length : (number + 1) * length]))
            except InvalidInput as error:
                error.add_note(f"at item {number} of {what}; no run was started")
                raise
        return starts

    async def _open_batch(
        self, batch_id: str, starts: list[Start], callback: Workflow[[str], Any] | None, parent: str | None = None
    ) -> Batch[R]:
        for number, start in enumerate(starts):
            start.id, start.batch, start.parent = f"{batch_id}/{number}", batch_id, parent
        then = None
        if callback is not None:
            then = callback.make_start((batch_id,), {})
            then.id = f"{batch_id}/callback"
        store = await self._workflow.app.client.store()
        there = not starts and await store.batch(batch_id) is not None  # no run tells it of an empty one
        made = await store.open_batch(batch_id, starts, then)
        existed = there if not made else all(started.existed for started in made)
        return Batch(self._workflow.app.client, batch_id, self._workflow.get, existed=existed)


class WorkflowDecorator:
    """What `@app.workflow(…)` with arguments gives."""

    def __init__(self, app: App, *, name: str | None, **kept: Any) -> None:
        self._app = app
        self._name = name
        self._kept = kept

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...
    def __call__(self, fn: Callable[P, Any], /) -> Workflow[P, Any]:
        if isinstance(fn, Workflow | Step) or not callable(fn):
            raise DefinitionError(f"@app.workflow goes on a function, not on {fn!r}")
        name = function_name(fn, self._name, "workflow")
        definition = WorkflowDefinition(name, fn, **self._kept)
        workflow: Workflow[P, Any] = Workflow(self._app, fn, definition)
        self._app.add(workflow)
        return workflow


def _check_same(started: Started, name: str) -> None:
    if started.existed and not started.same:
        raise id_conflict(started.id, f"this start of {name}")


def _give_ids(starts: Sequence[Start], ids: Iterable[str]) -> None:
    if not isinstance(ids, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"start_many takes ids= for its items, one for each, not {ids!r}")
    given = [ids] if isinstance(ids, str) else list(ids)
    if len(given) != len(starts):
        raise InvalidInput(f"start_many has {len(given)} ids for {len(starts)} items; give one for each")
    first: dict[str, Start] = {}
    for start, run_id in zip(starts, given, strict=True):
        start.id = check_id(run_id)
        if first.setdefault(run_id, start).input != start.input:
            raise InvalidInput(f"start_many has the id {run_id!r} for two different items; no run was started")
