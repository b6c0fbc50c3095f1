"""The runs of the plain model, and what clients do to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from conformance import uniques
from conformance.kit import ManualClock
from conformance.turns import Turns
from perdure.model import (
    Arrived,
    Checkpoint,
    Json,
    Millis,
    Outcome,
    RunRecord,
    Signal,
    Start,
    Started,
    State,
    Wait,
    WaitFor,
)


@dataclass
class Run:
    """What is known of one run. `shown` is what clients see of it."""

    shown: RunRecord
    start: Start
    slot: int | None
    first_input: Json
    put_off: bool = False
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict[str, Checkpoint])
    """In order of acceptance."""
    signals: list[Arrived] = field(default_factory=list[Arrived])
    delivered: dict[str, int] = field(default_factory=dict[str, int])
    """Positions of signals by their ids, also of those that were consumed, as long as they are remembered."""
    taken: dict[int, tuple[Arrived, str]] = field(default_factory=dict[int, tuple[Arrived, str]])
    """What was consumed since the run began (anew), with the key of the checkpoint."""
    owner: int | None = None
    token: int | None = None
    settled: list[int] = field(default_factory=list[int])
    overdue: bool = False
    """Whether it is being cancelled for its deadline."""
    schedule: str | None = None
    """That made it."""
    parked_for: list[str] | None = None
    """The runs whose ends the next claim brings, when the run was parked."""

    @property
    def id(self) -> str:
        return self.shown.id

    @property
    def rank(self) -> tuple[int, int]:
        return self.shown.priority, self.shown.position


class Runs:
    """All runs, by id, in the order in which they were made."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.runs: dict[str, Run] = {}
        self.turns = Turns(self.runs)
        self.positions = 0

    # --- clients

    def enqueue(self, starts: Iterable[Start]) -> list[Started]:
        return [self._start(each) for each in starts]

    def _start(self, wanted: Start, behind: Wait | None = None) -> Started:
        if wanted.id in self.runs:
            there = self.runs[wanted.id]
            same = (there.shown.workflow, there.first_input) == (wanted.workflow, wanted.input)
            return Started(wanted.id, True, same)
        now = self.clock.now()
        due = uniques.due(wanted, now)
        holder = uniques.holder(self.runs.values(), wanted, now)
        if holder is not None:
            if uniques.replaces(wanted, holder):
                holder.shown.input = wanted.input
                holder.shown.deadline = None if wanted.timeout is None else max(due, now) + wanted.timeout
                self._go(holder, State.SCHEDULED if due > now else State.QUEUED, due if due > now else None)
            return Started(holder.id, True, True)
        self.positions += 1
        run = self.runs[wanted.id] = Run(
            RunRecord(
                id=wanted.id,
                workflow=wanted.workflow,
                queue=wanted.queue,
                priority=wanted.priority,
                state=State.SCHEDULED if due > now else State.QUEUED,
                attempt=1,
                crashes=0,
                input=wanted.input,
                created_at=now,
                wake_at=due if due > now else None,
                deadline=None if wanted.timeout is None else max(due, now) + wanted.timeout,
                parent=wanted.parent,
                position=self.positions,
                group=wanted.group,
                session=wanted.session,
                unique=wanted.unique.key if wanted.unique else "",
            ),
            start=wanted,
            slot=0 if wanted.group else None,
            first_input=wanted.input,
        )
        if behind is not None:
            run.shown.state, run.shown.wake_at, run.shown.waits = State.WAITING, None, [behind]
            run.shown.deadline = None
        other_limit = self.turns.ask(wanted)
        self.turns.moved(run)
        return Started(wanted.id, False, True, other_limit)

    def signal(self, sent: Signal) -> None:
        run = self.runs[sent.run_id]
        if sent.id in run.delivered:
            return
        position = max(run.delivered.values(), default=0) + 1
        run.delivered[sent.id] = position
        run.signals.append(Arrived(position, sent.name, sent.body))
        if any(wait.what == WaitFor.SIGNAL and wait.target == sent.name for wait in run.shown.waits):
            self._queue(run)

    def cancel(self, run_id: str, reason: str) -> State:
        for run in self._family(run_id):
            self._stop(run, reason)
        return self.runs[run_id].shown.state

    def _stop(self, run: Run, reason: str) -> None:
        if run.shown.state == State.RUNNING:
            if run.shown.cancelling is None:
                run.shown.cancelling, run.overdue = reason, False
        elif not run.shown.state.final:
            self._end(run, State.CANCELLED, None)

    def _family(self, run_id: str) -> list[Run]:
        family = [self.runs[run_id]]
        for run in family:
            family += [each for each in self.runs.values() if each.shown.parent == run.id]
        return family

    def retry(self, run_id: str, from_key: str | None) -> None:
        run = self.runs[run_id]
        if from_key is not None:
            order = list(run.checkpoints)
            after = order[order.index(from_key) :]
            for key in order:
                if key in after or key.startswith(f"{from_key}/"):
                    del run.checkpoints[key]
        self._clear_errors(run)
        run.shown.attempt += 1
        run.shown.crashes = 0
        run.shown.deadline = run.shown.finished_at = run.shown.cancelling = run.shown.body = None
        run.shown.cut_off = False
        self._queue(run)

    def live_of(self, schedule: str) -> list[Run]:
        """The runs of a schedule that have not ended."""
        return [run for run in self.runs.values() if run.schedule == schedule and not run.shown.state.final]

    # --- transitions

    def _clear_errors(self, run: Run) -> None:
        run.checkpoints = {key: kept for key, kept in run.checkpoints.items() if kept.outcome != Outcome.ERROR}
        for arrived, key in list(run.taken.values()):
            if key not in run.checkpoints:
                del run.taken[arrived.position]
                run.signals.append(arrived)
        run.signals.sort(key=lambda arrived: arrived.position)

    def _release(self, run: Run) -> None:
        run.owner = run.token = run.shown.worker = None

    def _queue(self, run: Run) -> None:
        self._go(run, State.QUEUED)

    def _go(self, run: Run, state: State, wake_at: Millis | None = None, waits: Sequence[Wait] = ()) -> None:
        run.put_off = False
        run.shown.state, run.shown.wake_at, run.shown.waits = state, wake_at, list(waits)
        self.turns.moved(run)

    def _end(self, run: Run, state: State, body: str | None) -> None:
        run.shown.body, run.shown.finished_at = body, self.clock.now()
        run.shown.cancelling = run.parked_for = None
        run.shown.cut_off = False
        self._go(run, state)
        for other in list(self.runs.values()):
            if any(wait.what == WaitFor.RUN and wait.target == run.id for wait in other.shown.waits):
                self._queue(other)
        if run.schedule is not None:
            for first in self.live_of(run.schedule)[:1]:
                if any(wait.what == WaitFor.SCHEDULE for wait in first.shown.waits):
                    self._let_begin(first)

    def _let_begin(self, run: Run) -> None:
        """It waited behind others: its time counts from when it may begin."""
        now, made = self.clock.now(), run.shown.created_at
        due = uniques.due(run.start, made)
        due = max(due, now) if due > made else now  # one that was due when it was made is due, also if clocks go back
        if run.start.timeout is not None:
            run.shown.deadline = due + run.start.timeout
        self._go(run, State.SCHEDULED if due > now else State.QUEUED, due if due > now else None)
