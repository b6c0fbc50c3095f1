"""`Run`: a handle on one run, typed by its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing
from datetime import datetime, timedelta
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import json

from perdure.call import Call, Stream
from perdure.clock import millis, moment
from perdure.codec import Decoder, encode
from perdure.engine.scope import holds_slot, in_key, wait_in_step, workflow_scope
from perdure.engine.waits import Child, result, result_of, send_cancel, send_signal
from perdure.errors import ErrorInfo, InvalidInput, NotDurable, RunNotFound, StoreUnavailable
from perdure.explain import reason_of
from perdure.failures import decode_failure
from perdure.model import Checkpoint, Ended, Outcome, RunRecord, Signal, State
from perdure.options import check_labels, check_name, check_signal, check_text
from perdure.stores.base import Store, Topic
from perdure.stores.exchange import PAGE
from perdure.transactions import call_within

if TYPE_CHECKING:
    from perdure.client import Client

T = TypeVar("T")
R = TypeVar("R")

ANYTHING: Decoder[Any] = Decoder(Any, "a result")

_LONGEST_REASON = 1000
_LAST_LOOK = 1.0
"""Seconds for the look at a run whose result did not come in time: a store that hangs is not waited for any longer."""


class Run(Generic[R]):
    """A run in the store, by its id. Making a handle asks nothing of the store; its methods do.

    Each method gives a `Call`: await it, or say `.wait()` in sync code. All of them raise `RunNotFound` when the store
    has no such run, and `StoreUnavailable` when the store can't be reached. In the code of a workflow itself, all but
    `result`, `signal` and `cancel`, which are kept there, raise `NotDurable`: do them in a step.
    """

    def __init__(
        self,
        client: Client,
        run_id: str,
        decoder: Decoder[R],
        *,
        max_value_bytes: int,
        existed: bool | None = False,
        child: Child | None = None,
    ) -> None:
        self.id = run_id
        self._existed = existed
        self._client = client
        self._decoder = decoder
        self._max_value_bytes = max_value_bytes
        self._child = child

    @property
    def existed(self) -> bool:
        """Whether the start that gave this handle found the run there already.

        `NotDurable` for a start by a workflow's own code under an id that it gives: that is not kept for replays. Start
        it in a step where it matters. For one that has a unique key and no id it is kept.
        """
        return whether_existed(self._existed, f"run {self.id}")

    def result(self, timeout: timedelta | float | None = None) -> Call[R]:
        """The run's result, once it has ended.

        Raises `RunFailed` or `RunCancelled` when it ended so, and `TimeoutError` when it did not end within `timeout`
        (seconds or a timedelta; 0 looks once); the run goes on then. Inside of a workflow this is a durable wait: the
        run that asks is put away until the other one ends, or is deleted or pruned (`RunNotFound`), and what it saw is
        kept. In a step, which keeps its slot, a wait without `timeout` for a run of the same store raises
        `WouldDeadlock`, unless the run has ended.
        """
        limit = None if timeout is None else millis(timeout, "timeout")
        scope = workflow_scope(self._client, f"run {self.id}")
        if scope is None:
            in_step = limit is None and holds_slot(self._client)
            return Call(lambda: self._result(limit, in_step=in_step), f"result() of run {self.id}")
        child = self._child
        of = f"result:{in_key(self.id)}" if child is None else f"{child.key.removeprefix(scope.prefix)}.result"
        key = scope.key(of)
        execution = scope.execution
        return Call(
            lambda: result_of(execution, key, self.id, self._decoder, timeout=limit, child=child),
            f"result() of run {self.id}",
            execution,
        )

    def status(self) -> Call[RunStatus]:
        """What the run is doing now."""

        async def status(store: Store) -> RunStatus:
            return RunStatus(await self._record(store))

        return self._store_call(status, "status")

    def signal(self, name: str, value: object = None, *, transaction: object | None = None) -> Call[None]:
        """Sends the run a signal, which is kept until the run takes it with `wait_signal(name)`.

        Sent by a workflow it is sent once, whatever happens to the run that sends it. With `transaction` (see
        `Workflow.options`) it is sent when that commits. Raises `RunEnded` when the run has ended, `InvalidInput` for a
        name or value that can't be.
        """
        check_signal(name)
        body = encode(value, f"the value of signal {name}", self._max_value_bytes)
        message = Signal(token_hex(16), self.id, name, body)
        scope = workflow_scope(self._client, f"run {self.id}")
        if transaction is not None:
            what = f"signal() to run {self.id}"
            return call_within(self._client, transaction, scope, what, lambda within: within.signal(message))
        if scope is None:
            return self._store_call(lambda store: store.signal(message), "signal")
        key, execution = scope.key(f"send:{in_key(name)}"), scope.execution
        return Call(lambda: send_signal(execution, key, message), f"signal() to run {self.id}", execution)

    def cancel(
        self, reason: str = "cancelled by a client", *, children: bool = True, transaction: object | None = None
    ) -> Call[State]:
        """Cancels the run, and its children unless told otherwise; gives the state that it has now.

        A run that isn't running is cancelled at once. One that runs is told within a second: async code gets
        `CancelledError` and may clean up (steps still work there), sync code sees `current_run().cancelling`. A run
        that has ended stays as it is. `reason` is a text of at most 1,000 characters. With `transaction` (see
        `Workflow.options`) it is cancelled when that commits.
        """
        _check_reason(reason)
        scope = workflow_scope(self._client, f"run {self.id}")
        if transaction is not None:
            return call_within(
                self._client,
                transaction,
                scope,
                f"cancel() of run {self.id}",
                lambda within: within.cancel(self.id, reason, children=children),
            )
        if scope is not None:
            key, execution = scope.key("cancel"), scope.execution
            return Call(
                lambda: send_cancel(execution, key, self.id, reason, children=children),
                f"cancel() of run {self.id}",
                execution,
            )
        return self._store_call(lambda store: store.cancel(self.id, reason, children=children), "cancel")

    def retry(self, *, from_step: str | None = None) -> Call[None]:
        """Queues a run that failed or was cancelled once more; what its steps kept stays, failures are tried again.

        A run that was cancelled together with a child for which it waits goes on waiting for that one: retry the child
        first. (Where it has seen the child's end itself, and failed, it starts another one.)

        With `from_step` (a key as `history()` shows it) also a run that succeeded, and that step runs again, with the
        steps that it calls and all that was kept after it. Raises `RunNotEnded`, `CheckpointNotFound`.
        """
        if from_step is not None:
            check_text(from_step, "the key of a step")
        return self._store_call(lambda store: store.retry(self.id, from_key=from_step), "retry")

    def history(self) -> Call[list[Event]]:
        """What the run has behind it: its steps, sleeps, signals, children, in the order in which they were kept."""

        async def history(store: Store) -> list[Event]:
            record = await self._record(store)
            until = await store.now() if record.finished_at is None else record.finished_at
            events: list[Event] = []
            after = 0
            while page := await store.history(self.id, after=after, limit=PAGE):
                events += [Event(checkpoint, checkpoint.outcome_by(until)) for checkpoint in page]
                after = page[-1].position
            return events

        return self._store_call(history, "history")

    def watch(self) -> Stream[RunStatus]:
        """The run's status now, and again whenever its state, its attempt or its progress has changed; the last one is
        its end. Changes that come quickly may be seen as one.

        Changes are pushed where the store can, and seen within about a second otherwise.

            async for change in run.watch():
                print(change.state, change.progress)
        """
        return self._client.stream(self._changes, f"watch() of run {self.id}")

    def label(self, **labels: str | None) -> Call[None]:
        """Sets labels of the run, by which `app.runs(labels=…)` finds it; None removes one.

        await run.label(customer="7", region=None)
        """
        given = check_labels({name: value for name, value in labels.items() if value is not None})
        removed = {check_name(name, "a label"): "" for name in labels.keys() - given.keys()}
        return self._store_call(lambda store: store.label(self.id, given | removed), "label")

    def delete(self, *, force: bool = False) -> Call[int]:
        """Removes the run and all that descends from it, with everything that is kept of them; gives their number.

        Raises `RunNotEnded` when one of them has not ended, unless `force`; then a worker that executes one is told
        within a second, and can bring nothing back.
        """
        return self._store_call(lambda store: store.delete(self.id, force=force), "delete")

    def why(self) -> Call[str]:
        """Why the run is in the state that it is in, and what would change that: one sentence."""

        async def why(store: Store) -> str:
            return await reason_of(store, await self._record(store))

        return self._store_call(why, "why")

    async def _result(self, limit: int | None, *, in_step: bool) -> R:
        if in_step and not (await self._record(await self._client.store())).state.final:
            raise wait_in_step(f"result() of run {self.id}")
        try:
            async with asyncio.timeout(None if limit is None else limit / 1000):
                ended = await self._client.ended(self.id)
        except TimeoutError:
            # The time may have been too short to look even once.
            late = TimeoutError(
                f"run {self.id} has not ended within {(limit or 0) / 1000:g} s; it goes on, and its result can be asked"
                " for again"
            )
            try:
                async with asyncio.timeout(_LAST_LOOK):
                    record = await self._record(await self._client.store())
            except (StoreUnavailable, TimeoutError) as error:
                raise late from error
            if not record.state.final:
                raise late from None
            ended = Ended(record.id, record.state, record.body)
        return result(ended, self._decoder)

    async def _changes(self) -> AsyncGenerator[RunStatus]:
        seen: tuple[object, ...] | None = None
        async with aclosing(self._client.follow(self._record, Topic.STATUS, Topic.ENDED)) as records:
            async for record in records:
                now = (record.state, record.attempt, record.status, record.cancelling)
                if now != seen:
                    seen = now
                    yield RunStatus(record)
                if record.state.final:
                    return

    async def _record(self, store: Store) -> RunRecord:
        record = await store.load(self.id)
        if record is None:
            raise RunNotFound(f"there is no run {self.id!r}; was it pruned, or is this another store?")
        return record

    def _store_call(self, work: Callable[[Store], Coroutine[Any, Any, T]], what: str) -> Call[T]:
        return self._client.call(work, f"{what}() of run {self.id}")

    def __repr__(self) -> str:
        return f"<run {self.id}>"


def check_handles(client: Client, runs: Iterable[Run[R]], what: str) -> dict[str, Run[R]]:
    """Handles on runs of the store that `client` uses, by their ids, or `InvalidInput`."""
    if not isinstance(runs, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{what} takes the handles of runs, not {runs!r}")
    handles: dict[str, Run[R]] = {}
    for run in runs:
        if not isinstance(run, Run):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"{what} takes handles of runs, not {run!r}; app.run(id) gives one")
        if run._client is not client:
            raise InvalidInput(f"{what}: run {run.id} is of another app; app.run(id) gives a handle of this one")
        handles[run.id] = run
    return handles


def _check_reason(reason: str) -> None:
    if not isinstance(reason, str) or len(reason) > _LONGEST_REASON:
        shown = f"one of {len(reason):,} characters" if isinstance(reason, str) else repr(reason)
        raise InvalidInput(f"a reason is a text of at most {_LONGEST_REASON:,} characters, not {shown}")
    check_text(reason, "a reason")


class RunStatus:
    """What can be seen of a run from outside, at one moment."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record

    @property
    def id(self) -> str:
        """The run's id."""
        return self.record.id

    @property
    def workflow(self) -> str:
        """The name of its workflow."""
        return self.record.workflow

    @property
    def queue(self) -> str:
        """The name of the queue that it is in."""
        return self.record.queue

    @property
    def state(self) -> State:
        """What it is doing, or how it ended; see `State`."""
        return self.record.state

    @property
    def attempt(self) -> int:
        """The number of its attempt, from 1: the one that is under way, was last, or is to come."""
        return self.record.attempt

    @property
    def group(self) -> str:
        """The key of its group; empty when it has none."""
        return self.record.group

    @property
    def labels(self) -> dict[str, str]:
        """Its labels, by their names."""
        return self.record.labels

    @property
    def progress(self) -> Any:
        """What the run said last with `progress()`, as a plain JSON value: `{"done": 3, "total": 10}`, or whatever it
        was; None before it said anything."""
        return None if self.record.status is None else json.decode(self.record.status)

    @property
    def created_at(self) -> datetime:
        """When it was started, in UTC and by the store's clock."""
        return moment(self.record.created_at)

    @property
    def started_at(self) -> datetime | None:
        """When a worker first took it up, in UTC; None before that."""
        return None if self.record.started_at is None else moment(self.record.started_at)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended, in UTC; None before that."""
        return None if self.record.finished_at is None else moment(self.record.finished_at)

    @property
    def error(self) -> ErrorInfo | None:
        """The error of a run that failed, or the last one of a run that backs off before its next attempt."""
        record = self.record
        if record.body is None or record.state in (State.SUCCEEDED, State.CANCELLED):
            return None
        return decode_failure(record.body)

    def __repr__(self) -> str:
        return f"<run {self.id}: {self.workflow} is {self.state}>"


class Event:
    """One entry of a run's history."""

    def __init__(self, checkpoint: Checkpoint, outcome: Outcome) -> None:
        self.checkpoint = checkpoint
        self._outcome = outcome

    @property
    def key(self) -> str:
        """What it is found by in its run: `charge#2` for the second call of the step `charge`."""
        return self.checkpoint.key

    @property
    def kind(self) -> str:
        """`step`, `sleep`, `signal`, `child`, `result` (of another run) or `send` (to another run)."""
        return self.checkpoint.kind

    @property
    def outcome(self) -> str:
        """`ok`, `error`, or `open` for what is not over."""
        return self._outcome

    @property
    def attempts(self) -> int:
        """How many attempts a step has had, from 1."""
        return self.checkpoint.attempts

    @property
    def started_at(self) -> datetime:
        """When it began, in UTC and by the store's clock; of a step that was tried again, its last attempt."""
        return moment(self.checkpoint.started_at)

    @property
    def saved_at(self) -> datetime:
        """When it was last kept, in UTC."""
        return moment(self.checkpoint.saved_at)

    @property
    def value(self) -> Any:
        """The plain JSON value of what succeeded; None for the rest."""
        body = self.checkpoint.body
        return json.decode(body) if body is not None and self.checkpoint.outcome == "ok" else None

    @property
    def error(self) -> ErrorInfo | None:
        """The error of what failed, or of the last attempt of a step that is to be tried again; None for the rest."""
        body = self.checkpoint.body
        return decode_failure(body) if body is not None and self.checkpoint.outcome != "ok" else None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key}: {self.outcome}>"


def whether_existed(existed: bool | None, what: str) -> bool:
    """What a start found, where that is known; `NotDurable` where it is not."""
    if existed is None:
        raise NotDurable(
            f"whether {what} existed is not kept of a start in a workflow under an id that the code gives: start it in"
            " a step, or give it a unique key instead of an id"
        )
    return existed
