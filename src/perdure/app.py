"""`App`: workflows, the store that they live in, and what can be asked of both."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from perdure.call import Call
from perdure.client import Client
from perdure.clock import Clock, StoreClock, millis
from perdure.engine.definitions import WorkflowDefinition, check_definitions, function_name, place
from perdure.engine.points import Tap
from perdure.errors import DefinitionError, InvalidInput, UnknownWorkflow
from perdure.model import Count, RunQuery, State
from perdure.retry import Retry
from perdure.run import ANYTHING, Run, RunStatus
from perdure.step import Step
from perdure.stores import open_store
from perdure.workflow import Workflow, check_priority, check_queue

if TYPE_CHECKING:
    from perdure.engine.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

DEFAULT_QUEUE = "default"

_SHORTEST_LEASE = 100


class App:
    """An application: its workflows, and the store in which their runs live.

    Nothing is connected before it is needed; a wrong URL is refused at once. Any number of apps can be used side by
    side in one process, and one app from any number of threads and event loops.

    - `url`: `sqlite:///shop.db` (a file), `sqlite:////var/lib/shop.db` (an absolute path), `sqlite://` (in memory).
    - `max_value_bytes`: how large an input, result or signal may be as JSON. Large data belongs into a file or an
      object store, and its name into the workflow.

        app = App("sqlite:///shop.db")
    """

    def __init__(self, url: str, *, max_value_bytes: int = 1024 * 1024) -> None:
        self.url = url
        self.max_value_bytes = max_value_bytes
        self.client = Client(open_store(url))
        self.clock: Clock = StoreClock()
        self._workflows: dict[str, Workflow[..., Any]] = {}

    @property
    def workflows(self) -> dict[str, Workflow[..., Any]]:
        """The workflows by name."""
        return dict(self._workflows)

    # --- definitions

    @overload
    def workflow(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...
    @overload
    def workflow(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        max_crashes: int = 5,
        version: str | None = None,
        accepts: Sequence[str] = (),
        group: str | Callable[..., str] | None = None,
        group_limit: int = 1,
        group_keep: bool = True,
        session: str | Callable[..., str] | None = None,
        unique: str | Callable[..., str] | None = None,
    ) -> WorkflowDecorator: ...
    def workflow(
        self,
        fn: Callable[P, Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        max_crashes: int = 5,
        version: str | None = None,
        accepts: Sequence[str] = (),
        group: str | Callable[..., str] | None = None,
        group_limit: int = 1,
        group_keep: bool = True,
        session: str | Callable[..., str] | None = None,
        unique: str | Callable[..., str] | None = None,
    ) -> Workflow[P, Any] | WorkflowDecorator:
        """Makes a function a workflow of this app.

        Its runs go on where they were after a crash, a deploy or a long wait: the function is called again, and every
        step, sleep and signal that it has behind it answers at once with what was kept. So what it does between steps
        must not depend on time, chance or the outside world: those belong into steps.

        - `name`: by which runs find their code; the function's name when not given. Two with one name are refused.
        - `queue`, `priority` (lower numbers first): where its runs wait for a worker, unless a start says otherwise.
        - `retry`: what to do when the function raises; without it the first exception ends the run as failed. What
          its steps have kept stays kept; what failed is tried again.
        - `timeout`: seconds or a timedelta in which a run must end; then it fails with `DeadlineExceeded`.
        - `max_crashes`: how often in a row, without a step's progress, a run may take its worker's process with it
          before it ends as failed.
        - `version`: pins the runs that this code starts to workers that serve that version; `accepts` names others
          whose runs this code can take. A run without a version goes to any worker that knows the workflow.
        - `group`: a text, or a function of the workflow's arguments that gives one. Runs of one group go one after the
          other, in order; `group_limit` of them at a time. With `group_keep=False` a run gives up its place in the
          group while it waits or backs off.
        - `session`: likewise; ties runs to the worker that holds something for the session.
        - `unique`: likewise; one live run per key.

            @app.workflow(retry=Retry(attempts=3))
            async def fulfil(order: Order) -> Receipt: ...
        """
        if max_crashes < 1:
            raise InvalidInput("max_crashes must be at least 1")
        decorator = WorkflowDecorator(
            self,
            name=name,
            queue=check_queue(queue),
            priority=check_priority(priority),
            retry=retry,
            timeout=None if timeout is None else millis(timeout, "timeout"),
            max_crashes=max_crashes,
            version="" if version is None else check_name(version, "a version"),
            accepts=tuple(check_name(one, "a version") for one in accepts),
            group=group,
            group_limit=check_limit(group_limit, "group_limit"),
            group_keep=group_keep,
            session=session,
            unique=unique,
        )
        return decorator if fn is None else decorator(fn)

    def add(self, workflow: Workflow[..., Any]) -> None:
        """Takes in a workflow; `DefinitionError` when another one has its name."""
        known = self._workflows.get(workflow.name)
        if known is not None and place(known.fn) != place(workflow.fn):
            raise DefinitionError(
                f"two workflows are named {workflow.name!r}: {place(known.fn)} and {place(workflow.fn)}; give one"
                " another name with name="
            )
        self._workflows[workflow.name] = workflow

    def find(self, name: str) -> Workflow[..., Any]:
        """The workflow of that name; `UnknownWorkflow`, which names the likely one, when there is none."""
        try:
            return self._workflows[name]
        except KeyError:
            close = difflib.get_close_matches(name, self._workflows, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            known = ", ".join(sorted(self._workflows)) or "none"
            raise UnknownWorkflow(f"this app has no workflow {name!r}{hint}; it knows: {known}") from None

    # --- runs

    def run(self, run_id: str) -> Run[Any]:
        """A handle on a run of any workflow; `workflow.get(id)` gives a typed one."""
        return self.handle(run_id, None)

    def handle(
        self,
        run_id: str,
        workflow: Workflow[..., R] | None,
        *,
        existed: bool = False,
        child_key: str | None = None,
    ) -> Run[R]:
        """A handle whose result is read as the workflow says."""
        decoder = ANYTHING if workflow is None else workflow.definition.signature.returns
        return Run(
            self.client, run_id, decoder, max_value_bytes=self.max_value_bytes, existed=existed, child_key=child_key
        )

    def runs(
        self,
        *,
        state: State | str | Sequence[State | str] = (),
        workflow: str | None = None,
        queue: str | None = None,
        parent: str | None = None,
        limit: int = 50,
        after: RunStatus | None = None,
    ) -> Call[list[RunStatus]]:
        """Runs, newest first, at most `limit` of them; `after` (the last one of a page) gives the next page.

        Pages are stable: runs that come meanwhile move nothing.
        """
        query = RunQuery(
            states=[State(one) for one in ([state] if isinstance(state, str) else state)],
            workflow=workflow,
            queue=queue,
            parent=parent,
            limit=limit,
            after=None if after is None else after.record.position,
        )

        async def runs() -> list[RunStatus]:
            return [RunStatus(record) for record in await (await self.client.store()).runs(query)]

        return Call(runs, "runs()")

    def counts(self) -> Call[list[Count]]:
        """How many runs there are, by queue, workflow and state."""

        async def counts() -> list[Count]:
            return await (await self.client.store()).counts()

        return Call(counts, "counts()")

    # --- workers

    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 50,
        lease: timedelta | float = 10.0,
        grace: timedelta | float = 30.0,
        name: str | None = None,
        tap: Tap | None = None,
    ) -> Worker:
        """A worker in this process and event loop: `async with app.worker(): ...`

        - `queues`: the queues that it serves; those that the app's workflows name when not given.
        - `concurrency`: how many runs it executes at once. Runs that wait are not among them.
        - `lease`: seconds or a timedelta after which others take over its runs when it shows no sign of life; it is
          renewed from a thread of its own, so that blocked code loses nothing.
        - `grace`: seconds or a timedelta that runs have to end when the worker stops; then they are handed back.

        Raises `DefinitionError` when a workflow or step can't work.
        """
        from perdure.engine.worker import Worker

        if not isinstance(concurrency, int) or concurrency < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("a worker's concurrency is a whole number from 1 on")
        lease_ms = millis(lease, "lease")
        if lease_ms < _SHORTEST_LEASE:
            raise InvalidInput(f"a lease must be at least {_SHORTEST_LEASE} ms, or it ends before it can be renewed")
        definitions = {name: workflow.definition for name, workflow in self._workflows.items()}
        check_definitions(definitions.values())
        if queues is None:
            queues = sorted({definition.queue for definition in definitions.values()}) or [DEFAULT_QUEUE]
        return Worker(
            self.client.store,
            definitions,
            self.clock,
            queues=[check_queue(queue) for queue in queues],
            concurrency=concurrency,
            lease=lease_ms,
            grace=millis(grace, "grace") / 1000,
            max_value_bytes=self.max_value_bytes,
            name=name,
            tap=tap,
        )

    # --- lifecycle

    def close(self) -> Call[None]:
        """Closes the store. An app that is used again opens it again."""
        return Call(self.client.close, "close()")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    def __repr__(self) -> str:
        return f"<app on {self.url}>"


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
