"""Plain data that every part of Perdure shares: what a run is and what is kept about it.

Times are integers: milliseconds since the epoch, by the store's clock. Durations are in milliseconds too.
Values (inputs, results, signals, errors) are JSON texts; nothing below the codec looks inside them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct, json

from perdure.errors import DeadlineExceeded, ErrorInfo, PerdureError, Poisoned

Json: TypeAlias = str
Millis: TypeAlias = int


class State(StrEnum):
    """The state of a run. The last three are final."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the run has ended and will not change unless somebody retries it."""
        return self in FINAL_STATES


FINAL_STATES = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class Kind(StrEnum):
    """What a checkpoint stands for."""

    STEP = "step"
    SLEEP = "sleep"
    SIGNAL = "signal"
    CHILD = "child"
    """A child run was started; the body is its id as JSON."""
    RESULT = "result"
    """The outcome of another run, as this run saw it."""
    SEND = "send"
    """A signal sent to another run, or its cancellation; the body is the signal's id, or the state, as JSON."""


class Outcome(StrEnum):
    """How far the work behind a checkpoint has come."""

    OPEN = "open"
    """Begun and not over: a timer that runs, a wait with its deadline, a step between two attempts."""
    OK = "ok"
    ERROR = "error"


class Checkpoint(Struct, omit_defaults=True):
    """What is kept of one step, wait or child of a run, found by `key`.

    `body` is the value (`OK`) or the error (`ERROR`, and `OPEN` between two attempts of a step).
    `position` is the order in which the store accepted the checkpoints of a run: replay delivers in that order.
    """

    key: str
    kind: Kind
    outcome: Outcome
    body: Json | None = None
    attempts: int = 1
    digest: str = ""
    """Of the arguments that the step was called with; tells that they changed between two attempts."""
    at: Millis | None = None
    """When the timer is due, the wait gives up, or the next attempt of the step may begin."""
    started_at: Millis = 0
    saved_at: Millis = 0
    position: int = 0


class Start(Struct, omit_defaults=True):
    """A run to be made. `at` (absolute) and `delay` (from the store's now) exclude each other."""

    id: str
    workflow: str
    queue: str
    input: Json
    priority: int = 0
    at: Millis | None = None
    delay: Millis | None = None
    timeout: Millis | None = None
    """From its start by the client (or its due time, when delayed) until it must have ended."""
    max_crashes: int = 5
    parent: str | None = None


class Started(Struct):
    """What became of a `Start`. An id that exists is not started again: `existed` says so."""

    id: str
    existed: bool
    same: bool
    """Whether the run that existed has the same workflow and was started with the same input, whatever input it has
    continued with since."""


class Signal(Struct):
    """A message to a run. `id` is made by the sender, so that a repeated delivery is one signal."""

    id: str
    run_id: str
    name: str
    body: Json


class Arrived(Struct):
    """A signal that waits at its run; `position` orders the signals of a run and names one for consuming."""

    position: int
    name: str
    body: Json


class Ended(Struct):
    """The outcome of a run that reached a final state."""

    id: str
    state: State
    body: Json | None


class WaitFor(StrEnum):
    """What a parked run can wait for."""

    TIMER = "timer"
    SIGNAL = "signal"
    RUN = "run"


class Wait(Struct, omit_defaults=True):
    """One condition that wakes a parked run: `target` is a signal's name or a run's id; `at` is a time limit."""

    key: str
    what: WaitFor
    target: str = ""
    at: Millis | None = None


class RunRecord(Struct, kw_only=True):
    """Everything that a client can see of a run, but for its checkpoints."""

    id: str
    workflow: str
    queue: str
    priority: int
    state: State
    attempt: int
    crashes: int
    input: Json
    created_at: Millis
    started_at: Millis | None = None
    finished_at: Millis | None = None
    wake_at: Millis | None = None
    deadline: Millis | None = None
    parent: str | None = None
    worker: str | None = None
    """The name of the worker that owns the run while it is `running`."""
    cancelling: str | None = None
    """Why it is being cancelled; None when it is not."""
    held: str | None = None
    """Why a queued or scheduled run is kept from running; None when nothing but time or a free slot is missing."""
    body: Json | None = None
    """The result or the error of a run that ended; the last error of a run that backs off before its retry."""
    waits: list[Wait] = []
    """What a waiting run waits for."""
    position: int = 0
    """The order of enqueueing; a cursor for lists."""


class RunQuery(Struct, kw_only=True):
    """Which runs to list: newest first, or oldest first; `after` is the `position` of the last one seen."""

    states: list[State] = []
    workflow: str | None = None
    queue: str | None = None
    parent: str | None = None
    limit: int = 50
    after: int | None = None
    oldest_first: bool = False


class Count(Struct):
    """How many runs of a workflow are in a state, on one queue."""

    queue: str
    workflow: str
    state: State
    runs: int


class WorkerRecord(Struct, kw_only=True):
    """A live worker incarnation."""

    id: int
    name: str
    host: str
    pid: int
    queues: list[str]
    workflows: list[str]
    concurrency: int
    started_at: Millis
    lease_until: Millis
    running: int
    """How many runs it owns now."""


def crash_backoff(crashes: int) -> Millis:
    """The longest time that a run stays away after it crashed its worker; the store draws a time below it.

    The first crash costs nothing: most are deploys and machines that go away. From the second on, the random wait
    pulls apart runs that went down together, so that the blame ends up with the one that does it.
    """
    return 0 if crashes < 2 else min(60_000, 500 * 2**crashes)


def poisoned(crashes: int) -> Json:
    """The error of a run that ended its worker `crashes` times."""
    return _error(Poisoned, f"ended its worker {crashes} times; retry it when the cause is mended")


DEADLINE_PASSED = "its deadline passed"
"""Why a run whose deadline passed while it was running is to be cancelled; it fails with `deadline_exceeded`."""

PARENT_DEADLINE_PASSED = "the deadline of the run that it descends from passed"
"""Why what descends from such a run is cancelled."""


def deadline_exceeded() -> Json:
    """The error of a run that did not end within its `timeout`."""
    return _error(DeadlineExceeded, "did not end within its timeout")


def _error(kind: type[PerdureError], message: str) -> Json:
    return json.encode(
        ErrorInfo(type=f"{kind.__module__}:{kind.__qualname__}", message=message, args=[message])
    ).decode()
