"""`App`: workflows, the store that they live in, and what can be asked of both."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from perdure.batch import Batch
from perdure.call import Call, Stream
from perdure.client import Client
from perdure.clock import Clock, StoreClock, millis, time_limit
from perdure.ended import as_ended
from perdure.engine.definitions import Key
from perdure.errors import DefinitionError, InvalidInput, UnknownQueue, UnknownWorkflow
from perdure.limits import LimitControl
from perdure.model import Count, FailureCause, Missed, Overlap, QueueReport, Retention, RunQuery, State
from perdure.options import (
    DEFAULT_QUEUE,
    check_filters,
    check_flag,
    check_key,
    check_labels,
    check_name,
    check_priority,
    check_queue,
    check_states,
    check_text,
    check_versions,
)
from perdure.rates import check_count, check_limit
from perdure.retention import make_policy, warn_of_unknown
from perdure.retry import Retry, check_retry
from perdure.run import ANYTHING, Run, RunStatus
from perdure.schedules import ScheduleControl, check_args, make_timing
from perdure.stores import open_store
from perdure.stores.base import PRUNE_LIMIT, Store
from perdure.wording import did_you_mean, shown_url
from perdure.workflow import StartCall, Workflow, WorkflowDecorator

if TYPE_CHECKING:
    from perdure.engine.waits import Child
    from perdure.engine.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W", bound=Workflow[..., Any])

_SHORTEST_LEASE = 100


class App:
    """An application: its workflows, and the store in which their runs live.

    Nothing is connected before it is needed; a wrong URL is refused at once. Any number of apps can be used side by
    side in one process, and one app from any number of threads and event loops.

    - `url`: `sqlite:///shop.db` (a file), `sqlite:////var/lib/shop.db` (an absolute path), `sqlite://` (in memory),
      `postgresql://user@host/database`, `redis://user@host` (or `valkey://`; `rediss://` for TLS).
    - `max_value_bytes`: how large an input, result or signal may be as JSON. Large data belongs into a file or an
      object store, and its name into the workflow.
    - `queues`: the queues that there are, besides `default`. Then any other name is refused with `UnknownQueue`, by the
      first call that has it: a workflow, a start, a worker, a limit. Without it a queue comes about by being named, so
      that any name will do, and a mistyped one shows as a run that waits: `perdure start` and `why` say that no worker
      serves its queue, and which one was meant.

    Raises `StoreUrlError` and `InvalidInput`.

        app = App("sqlite:///shop.db")
    """

    def __init__(self, url: str, *, max_value_bytes: int = 1024 * 1024, queues: Sequence[str] | None = None) -> None:
        self.url = url
        self.max_value_bytes = check_count(max_value_bytes, "max_value_bytes")
        self.client = Client(open_store(url))
        self.clock: Clock = StoreClock()
        self.limits = LimitControl(self)
        """What may run at a time, how many may begin in a time, and what is paused."""
        self.schedules = ScheduleControl(self)
        """The schedules of the store."""
        self._queues = None if queues is None else {DEFAULT_QUEUE, *_queue_names(queues)}
        self._workflows: dict[str, Workflow[..., Any]] = {}
        self._retention: list[Retention] = []

    @property
    def workflows(self) -> dict[str, Workflow[..., Any]]:
        """The workflows by name."""
        return dict(self._workflows)

    @property
    def queue_names(self) -> list[str]:
        """The queues that the app declares, and those that its workflows name."""
        named = {workflow.definition.queue for workflow in self._workflows.values()}
        return sorted(named if self._queues is None else named | self._queues) or [DEFAULT_QUEUE]

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
        group: Key | None = None,
        group_limit: int = 1,
        group_keep: bool = True,
        session: Key | None = None,
        unique: Key | None = None,
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
        group: Key | None = None,
        group_limit: int = 1,
        group_keep: bool = True,
        session: Key | None = None,
        unique: Key | None = None,
    ) -> Workflow[P, Any] | WorkflowDecorator:
        """Makes a function a workflow of this app.

        Its runs go on where they were after a crash, a deploy or a long wait: the function is called again, and every
        step, sleep and signal that it has behind it answers at once with what was kept. So what it does between steps
        must not depend on time, chance or the outside world: those belong into steps.

        - `name`: by which runs find their code; the function's name when not given. Two with one name are refused.
        - `queue`, `priority` (lower numbers first): where its runs wait for a worker, unless a start says otherwise.
        - `retry`: what to do when the function raises; without it the first exception ends the run as failed. What
          its steps have kept stays kept; what failed is tried again.
        - `timeout`: seconds or a timedelta in which a run must end, from the time that it may start (see
          `options`); then it fails with `DeadlineExceeded`.
        - `max_crashes`: how often in a row, without a step's progress, a run may take its worker's process with it
          before it ends as failed.
        - `version`: pins the runs that this code starts to workers that serve that version; `accepts` names others
          whose runs this code takes too. A run without a version goes to any worker that knows the workflow.
        - `group`: a text, or a function of the workflow's arguments that gives one. Runs of one group and queue go one
          after the other, in order, or `group_limit` of them at a time, as the start says that makes the group. A run
          keeps its place in the group while it waits or backs off, so that the order is strict; with
          `group_keep=False` it gives it up.
        - `session`: a text or such a function; ties runs to the worker that holds something for that session: the
          first one that takes a run of it owns it as long as it lives and has runs of it.
        - `unique`: a text or such a function; one live run per key and workflow. See `Workflow.options`.

            @app.workflow(retry=Retry(attempts=3))
            async def fulfil(order: Order) -> Receipt: ...

            @app.workflow(group=lambda order: order.customer)
            async def ship(order: Order) -> None: ...
        """
        decorator = WorkflowDecorator(
            self,
            name=name,
            queue=self.known_queue(queue),
            priority=check_priority(priority),
            retry=check_retry(retry),
            timeout=time_limit(timeout),
            max_crashes=check_count(max_crashes, "max_crashes"),
            version="" if version is None else check_name(version, "a version"),
            accepts=check_versions(accepts),
            group=check_key(group, "a group"),
            group_limit=check_limit(group_limit, "group_limit"),
            group_keep=check_flag(group_keep, "group_keep"),
            session=check_key(session, "a session"),
            unique=check_key(unique, "a unique key"),
        )
        return decorator if fn is None else decorator(fn)

    def schedule(
        self,
        cron: str | None = None,
        *,
        tz: str = "UTC",
        every: timedelta | float | None = None,
        at: datetime | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        missed: Missed | str = Missed.LAST,
        missed_limit: int = 100,
        overlap: Overlap | str = Overlap.ALLOW,
        jitter: timedelta | float = 0,
    ) -> Callable[[W], W]:
        """Starts a workflow again and again, at times that come from the store's clock; put above `@app.workflow`.

        It is put into the store when a worker starts. Each of its times makes exactly one run for the whole fleet,
        whatever the number of workers, even when all of them are busy. Over a change to or from daylight saving time a
        daily time fires once a day; one that does not exist fires at the next moment that does.

        - `cron`: five fields (minute, hour, day of month, month, day of week), such as `"0 9 * * mon-fri"`, in the
          time zone `tz`; or `every` (seconds or a timedelta, counted from 1970 on, so that it does not drift); or `at`
          (an aware datetime), once.
        - `name`: by which it is kept; the workflow's name when not given. Under a new name it is another schedule, and
          the old one goes on until it is removed; workers say so.
        - `args`: the arguments of each run.
        - `missed`: what becomes of times that passed while no worker lived: `"skip"`, `"last"` (one run for the latest
          of them) or `"all"` (of at most `missed_limit`).
        - `overlap`: what to do while the run before has not ended: `"allow"`, `"skip"`, `"queue"` (one after the
          other), `"cancel"` (the one before).
        - `jitter`: seconds or a timedelta, up to which each run is put off, by an amount that its name and time fix.

        Raises `InvalidInput` at once for a line that can't be, or an unknown zone, `DefinitionError` when two schedules
        have one name.

            @app.schedule("0 9 * * mon-fri", tz="Europe/Berlin")
            @app.workflow
            async def report() -> None: ...
        """

        given = check_args(args)

        def decorate(workflow: W) -> W:
            if not isinstance(workflow, Workflow):
                raise DefinitionError(f"@app.schedule goes above @app.workflow, not on {workflow!r}")
            timing = make_timing(
                workflow.name if name is None else name,
                cron,
                every=every,
                at=at,
                tz=tz,
                missed=missed,
                missed_limit=missed_limit,
                overlap=overlap,
                jitter=jitter,
            )
            self.schedules.declare(timing, lambda: workflow.make_start(given, {}))
            return workflow

        return decorate

    def retain(
        self,
        *,
        workflow: str | None = None,
        state: State | str | None = None,
        age: timedelta | float | None = None,
        count: int | None = None,
    ) -> None:
        """Lets go of runs that ended: those that ended longer ago than `age` (seconds or a timedelta), and all but the
        latest `count`. Without a policy runs are kept for ever.

        Workers remove them in the background, a few at a time, and `prune` at once. Of several policies that fit a run
        the most specific holds: that for its workflow and outcome (`state`), for its workflow, for its outcome, for
        all. After it nothing of the run is left. A child stays as long as its parent. Raises `InvalidInput`.

            app.retain(age=timedelta(days=30))
            app.retain(state="failed", age=timedelta(days=180))
        """
        self._retention.append(make_policy(workflow, state, age, count))

    def add(self, workflow: Workflow[..., Any]) -> None:
        """Takes in a workflow; `DefinitionError` when another one has its name."""
        known = self._workflows.get(workflow.name)
        if known is not None and not workflow.definition.replaces(known.definition):
            raise DefinitionError(
                f"two workflows are named {workflow.name!r}: {known.definition.place} and {workflow.definition.place};"
                " give one another name with name="
            )
        self._workflows[workflow.name] = workflow

    def find(self, name: str) -> Workflow[..., Any]:
        """The workflow of that name; `UnknownWorkflow`, which names the likely one, when there is none."""
        try:
            return self._workflows[name]
        except KeyError:
            hint = did_you_mean(name, self._workflows)
            known = ", ".join(sorted(self._workflows)) or "none"
            raise UnknownWorkflow(f"this app has no workflow {name!r}{hint}; it knows: {known}") from None

    def known_queue(self, name: str) -> str:
        """The name of a queue; `UnknownQueue`, which names the likely one, when the app declares others."""
        check_queue(name)
        if self._queues is not None and name not in self._queues:
            known = sorted(self._queues)
            raise UnknownQueue(
                f"this app has no queue {name!r}{did_you_mean(name, known)}; it declares: {', '.join(known)}"
            )
        return name

    # --- runs

    def run(self, run_id: str) -> Run[Any]:
        """A handle on a run of any workflow; `workflow.get(id)` gives a typed one."""
        return self.handle(check_text(run_id, "the id of a run"), None)

    def handle(
        self,
        run_id: str,
        workflow: Workflow[..., R] | None,
        *,
        existed: bool | None = False,
        child: Child | None = None,
    ) -> Run[R]:
        """A handle whose result is read as the workflow says."""
        decoder = ANYTHING if workflow is None else workflow.definition.signature.returns
        return Run(self.client, run_id, decoder, max_value_bytes=self.max_value_bytes, existed=existed, child=child)

    def runs(
        self,
        *,
        state: State | str | Sequence[State | str] = (),
        workflow: str | None = None,
        queue: str | None = None,
        parent: str | None = None,
        group: str | None = None,
        batch: str | None = None,
        cause: str | None = None,
        labels: dict[str, str] | None = None,
        limit: int = 50,
        after: RunStatus | None = None,
    ) -> Call[list[RunStatus]]:
        """Runs, newest first, at most `limit` of them; `after` (the last one of a page) gives the next page.

        All filters that are given must fit; of `labels` a run must have all, of `state` one. `cause` is one that
        `failures` names. Pages are stable: runs that come meanwhile move nothing.
        """
        if after is not None and not isinstance(after, RunStatus):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"after= is the last run of a page, as runs() gave it, not {after!r}")
        query = check_filters(
            RunQuery(
                states=check_states(state),
                workflow=workflow,
                queue=queue,
                parent=parent,
                group=group,
                batch=batch,
                cause=cause,
                labels=check_labels(labels or {}),
                limit=check_count(limit, "limit"),
                after=None if after is None else after.record.position,
            )
        )

        async def runs(store: Store) -> list[RunStatus]:
            return [RunStatus(record) for record in await store.runs(query)]

        return self.client.call(runs, "runs()")

    def batch(self, batch_id: str) -> Batch[Any]:
        """A handle on a batch of any workflow; `workflow.get_batch(id)` gives a typed one."""
        return Batch(self.client, check_text(batch_id, "the id of a batch"), self.run)

    def start_many(
        self, workflow: Workflow[..., R] | StartCall[..., R], inputs: Iterable[Any], *, ids: Iterable[str] | None = None
    ) -> Call[list[Run[R]]]:
        """Makes a run of the workflow for each item: `workflow.start_many(inputs, ids=ids)`, which see, for code that
        has the app in hand. `workflow.options(…)` in place of the workflow sets options for all of them.

        Raises `InvalidInput` when one item doesn't fit; then none is started.

            runs = await app.start_many(parse, paths)
            async for run in app.as_ended(runs):
                print(run.id, await run.result())
        """
        if not isinstance(workflow, Workflow | StartCall):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"what start_many() makes runs of is a workflow of the app, not {workflow!r}")
        if workflow.app is not self:
            raise InvalidInput(f"start_many(): {workflow!r} is of another app; say it to that one")
        return workflow.start_many(inputs, ids=ids)

    def as_ended(self, runs: Iterable[Run[R]]) -> Stream[Run[R]]:
        """Runs, of any workflows, as they end: each of the handles once, those that have ended already first. Any
        number of them shares one subscription. A run that is not there, or not any more, comes as well: its `result`
        raises `RunNotFound`.

        Raises `InvalidInput` for what is no handle of this app; `NotDurable` inside of a workflow, where the order
        would be another one when it is replayed; `WouldDeadlock` in a step, which keeps its slot, when it would have to
        wait for a run of the same store.

            async for run in app.as_ended(runs):        # async
                print(run.id, await run.result())
            for run in app.as_ended(runs):              # sync
                print(run.id, run.result().wait())
        """
        return as_ended(self.client, runs)

    def counts(self) -> Call[list[Count]]:
        """How many runs there are, by queue, workflow and state."""
        return self.client.call(lambda store: store.counts(), "counts()")

    def queues(self) -> Call[list[QueueReport]]:
        """Each queue at this moment: how many runs are ready, running and held (and why), and its limits."""
        return self.client.call(lambda store: store.queues(), "queues()")

    def failures(
        self,
        *,
        workflow: str | None = None,
        queue: str | None = None,
        labels: dict[str, str] | None = None,
        limit: int = 50,
    ) -> Call[list[FailureCause]]:
        """Failed runs by their cause (type of the exception and where it was raised), the most frequent first."""
        query = check_filters(
            RunQuery(
                states=[State.FAILED],
                workflow=workflow,
                queue=queue,
                labels=check_labels(labels or {}),
                limit=check_count(limit, "limit"),
            )
        )
        return self.client.call(lambda store: store.failures(query), "failures()")

    def retry_failed(
        self,
        *,
        workflow: str | None = None,
        cause: str | None = None,
        queue: str | None = None,
        labels: dict[str, str] | None = None,
        limit: int = 1000,
        dry_run: bool = False,
    ) -> Call[list[str]]:
        """Queues failed runs once more, at most `limit` of them; gives their ids. With `dry_run` it only says which.

        What their steps kept stays, what failed is tried again. `cause` is one that `failures` names. Runs whose unique
        key another live run has are left out.
        """
        query = check_filters(
            RunQuery(
                states=[State.FAILED],
                workflow=workflow,
                cause=cause,
                queue=queue,
                labels=check_labels(labels or {}),
                limit=check_count(limit, "limit"),
                oldest_first=True,
            )
        )
        return self.client.call(lambda store: store.retry_many(query, dry_run=dry_run), "retry_failed()")

    def prune(
        self,
        *,
        workflow: str | None = None,
        state: State | str | None = None,
        age: timedelta | float | None = None,
        count: int | None = None,
    ) -> Call[int]:
        """Removes runs that ended, by the policies of `retain`, or by the one that is given here; gives their number.

        It goes through them in small transactions, so that others can work beside it. Raises `InvalidInput` when there
        is no policy.
        """
        policies = list(self._retention)
        if age is not None or count is not None:
            policies = [make_policy(workflow, state, age, count)]
        elif workflow is not None or state is not None or not policies:
            raise InvalidInput("say which runs may go: give age= or count=, or declare policies with app.retain()")

        async def prune(store: Store) -> int:
            total = 0
            while removed := await store.prune(policies, limit=PRUNE_LIMIT):
                total += removed
            return total

        return self.client.call(prune, "prune()")

    # --- workers

    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 50,
        lease: timedelta | float = 10.0,
        grace: timedelta | float = 30.0,
        sessions: int = 10,
        session_idle: timedelta | float = 60.0,
        name: str | None = None,
    ) -> Worker:
        """A worker in this process and event loop: `async with app.worker(): ...`

        - `queues`: the queues that it serves; those that the app declares, or its workflows name, when not given.
        - `concurrency`: how many runs it executes at once. Runs that wait are not among them.
        - `lease`: seconds or a timedelta after which others take over its runs when it shows no sign of life; it is
          renewed from a thread of its own, so that blocked code loses nothing (one C call that holds the interpreter's
          lock for longer does: give such steps `process=True`).
        - `grace`: seconds or a timedelta that runs have to end when the worker stops; then they are handed back.
        - `sessions`: how many sessions it owns at a time, at most; 0 for none. A session is given up `session_idle`
          (seconds or a timedelta) after its last run here, and at once when the worker stops.

        What code declares (schedules, limits) is put into the store when it starts. Raises `DefinitionError` when a
        workflow or step can't work, and `UnknownQueue` for a queue that an app which declares its queues does not have.
        """
        from perdure.engine.reach import check_definitions
        from perdure.engine.worker import Worker

        check_count(concurrency, "a worker's concurrency")
        if not isinstance(sessions, int) or isinstance(sessions, bool) or sessions < 0:
            raise InvalidInput(f"the sessions of a worker are a whole number, 0 for none, not {sessions!r}")
        lease_ms = millis(lease, "lease")
        if lease_ms < _SHORTEST_LEASE:
            raise InvalidInput(f"a lease must be at least {_SHORTEST_LEASE} ms, or it ends before it can be renewed")
        definitions = {name: workflow.definition for name, workflow in self._workflows.items()}
        check_definitions(list(definitions.values()))
        if queues is not None and not queues:
            raise InvalidInput("queues names no queue: a worker needs one at least; leave it out for those of the app")
        served = self.queue_names if queues is None else [self.known_queue(name) for name in _queue_names(queues)]
        return Worker(
            self.client.store,
            definitions,
            self.clock,
            queues=served,
            concurrency=concurrency,
            lease=lease_ms,
            grace=millis(grace, "grace") / 1000,
            sessions=sessions,
            session_idle=millis(session_idle, "session_idle"),
            retention=self._retention,
            declare=self._declare,
            max_value_bytes=self.max_value_bytes,
            name=None if name is None else check_name(name, "a worker"),
        )

    async def _declare(self, store: Store) -> None:
        await self.limits.declare_all(store)
        await self.schedules.declare_all(store)
        kept = {policy.workflow for policy in self._retention if policy.workflow is not None}
        if kept - self._workflows.keys():
            warn_of_unknown(kept, {*self._workflows, *(count.workflow for count in await store.counts())})

    # --- lifecycle

    def close(self) -> Call[None]:
        """Closes the store. An app that is used again opens it again."""
        return Call(self.client.close, "close()")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    def __repr__(self) -> str:
        return f"<app on {shown_url(self.url)}>"


def _queue_names(given: Sequence[str]) -> list[str]:
    """A list of names of queues, checked."""
    if isinstance(given, str):
        raise InvalidInput(f"queues is a list of names: write queues=[{given!r}]")
    if not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"queues is a list of names, not {given!r}")
    return [check_queue(name) for name in given]
