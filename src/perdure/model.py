"""Plain data that every part of Perdure shares: what a run is and what is kept about it.

Times are integers: milliseconds since the epoch, by the store's clock. Durations are in milliseconds too.
Values (inputs, results, signals, errors) are JSON texts; nothing below the codec looks inside them.
What there is much of (`gc=False`) is never part of a cycle, so the garbage collector need not look at it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

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

MOST_LABELS = 20
"""The most labels that a run has."""


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


class Checkpoint(Struct, omit_defaults=True, gc=False):
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
    """Of the arguments of the step or the child; tells that they changed between two attempts."""
    at: Millis | None = None
    """When the timer is due, the wait gives up, or the next attempt of the step may begin."""
    started_at: Millis = 0
    saved_at: Millis = 0
    position: int = 0

    def outcome_by(self, time: Millis) -> Outcome:
        """How it stood at a time. Nobody notes that a sleep is over: its time is all that there is to it."""
        slept = self.kind is Kind.SLEEP and self.at is not None and self.at <= time
        return Outcome.OK if slept else self.outcome


class OnConflict(StrEnum):
    """What a start does whose unique key is taken."""

    EXISTING = "existing"
    """It gets the live run."""
    REPLACE = "replace"
    """A live run that has not begun takes its input and due time; one that has begun is handed back as it is."""
    DEBOUNCE = "debounce"
    """Like `REPLACE`, and the run is put off to `period` from now. The key is free as soon as the run begins, so that
    what comes meanwhile makes the next one. The run that takes the key first is put off too."""
    THROTTLE = "throttle"
    """It gets the run that took the key within the last `period`, even when that has ended."""


class Unique(Struct, omit_defaults=True):
    """One live run per key and workflow. The key is free again when the run ends, however it ends."""

    key: str
    on_conflict: OnConflict = OnConflict.EXISTING
    period: Millis = 0


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
    """From when it is due, and what it was made to wait for (a batch, earlier runs) is over, until its end."""
    max_crashes: int = 5
    parent: str | None = None
    version: str = ""
    """The version of the code that it is pinned to; "" when any will do."""
    group: str = ""
    """Runs of one group and queue: at most its limit of them at a time, in order (priority, then enqueueing)."""
    group_limit: int = 1
    """The group's limit when the store has none for it."""
    group_keep: bool = True
    """Whether the run keeps its place in the group while it waits or backs off (strict order), or gives it up."""
    session: str = ""
    """Ties it to the worker that owns that session of its queue."""
    unique: Unique | None = None
    labels: dict[str, str] = {}
    batch: str = ""
    """The id of the batch that it belongs to."""


class Started(Struct):
    """What became of a `Start`. An id that exists is not started again: `existed` says so."""

    id: str
    existed: bool
    same: bool
    """Whether the run that existed has the same workflow and was started with the same input, whatever input it has
    continued with since. Always true when a unique key led to it."""
    group_limit: int | None = None
    """The limit that holds for its group, when that was made with another one than this start brings, and none was set
    since that agrees with it."""


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
    """A run has ended, or there is none of that id (any more)."""
    BATCH = "batch"
    """All runs of a batch have ended: what a batch's callback is made to wait for."""
    SCHEDULE = "schedule"
    """All earlier runs of a schedule have ended: what `Overlap.QUEUE` has a run made to wait for. Of a
    run that is listed, the target is the first one that has not."""


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
    """How often in a row, without a step's progress between, it went down with its worker and was blamed."""
    cut_off: bool = False
    """Whether the attempt before this one ended with its worker's death; False when the run has ended."""
    input: Json
    created_at: Millis
    started_at: Millis | None = None
    finished_at: Millis | None = None
    wake_at: Millis | None = None
    deadline: Millis | None = None
    parent: str | None = None
    worker: str | None = None
    """The name of the worker that owns the run while it is `running`."""
    lease_until: Millis | None = None
    """When the lease of that worker ends, or has ended if nobody has taken the run back yet."""
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
    version: str = ""
    group: str = ""
    session: str = ""
    unique: str = ""
    batch: str = ""
    labels: dict[str, str] = {}
    status: Json | None = None
    """What the run said of its own progress last."""
    cause: str | None = None
    """Of a failed run: type of the error and where it was raised, for grouping."""


class RunQuery(Struct, kw_only=True):
    """Which runs to list: newest first, or oldest first; `after` is the `position` of the last one seen."""

    states: list[State] = []
    workflow: str | None = None
    queue: str | None = None
    parent: str | None = None
    group: str | None = None
    batch: str | None = None
    cause: str | None = None
    labels: dict[str, str] = {}
    """All of them must be there."""
    limit: int = 50
    after: int | None = None
    oldest_first: bool = False


class Count(Struct):
    """How many runs of a workflow are in a state, on one queue."""

    queue: str
    workflow: str
    state: State
    runs: int


class ScopeKind(StrEnum):
    """What a limit, a rate or a pause is for."""

    NAMESPACE = "namespace"
    """Everything in the store."""
    QUEUE = "queue"
    WORKFLOW = "workflow"
    GROUP = "group"
    """One group, on whatever queue. Its `limit` replaces the one that its starts bring."""


class Scope(Struct, frozen=True):
    """What a limit, a rate or a pause is for; the name is empty for the namespace."""

    kind: ScopeKind
    name: str = ""


class Rate(Struct, frozen=True):
    """At most `burst + t * count / period` runs begin in any window of length t."""

    count: int
    period: Millis
    burst: int


class Limits(Struct, frozen=True):
    """What holds for a scope: how many of its runs may be running at a time, and how many may begin in a time. None
    is no limit."""

    running: int | None = None
    rate: Rate | None = None


class LimitRecord(Struct, kw_only=True):
    """What is stored for a scope. Each change is a revision; the numbers count for the whole store."""

    scope: Scope
    limits: Limits
    paused: bool
    revision: int
    who: str
    at: Millis
    running: int = 0
    """How many runs count against it now."""
    queues: int = 1
    """On how many queues the runs of a group are: its limit is for each of them, its rate for all together."""


class Revision(Struct, kw_only=True):
    """One change of the limits or the pause of a scope."""

    revision: int
    scope: Scope
    who: str
    at: Millis
    old: Limits
    new: Limits
    was_paused: bool
    paused: bool


class Missed(StrEnum):
    """What a schedule does about slots that passed while nobody could fire them."""

    SKIP = "skip"
    LAST = "last"
    ALL = "all"
    """All, the oldest first, up to `missed_limit` of the latest."""


class Overlap(StrEnum):
    """What a schedule does when runs of earlier slots have not ended, be they the last ones or retried since."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"
    """The run is made, and begins when all earlier ones have ended."""
    CANCEL = "cancel"
    """The earlier runs are cancelled."""


class Schedule(Struct, kw_only=True, omit_defaults=True):
    """A recurring (or one-off) start. Exactly one of `cron`, `every`, `at` is given."""

    name: str
    cron: str | None = None
    tz: str = "UTC"
    every: Millis | None = None
    """Slots lie at whole multiples of it since the epoch, so that they do not drift."""
    at: Millis | None = None
    start: Start
    """What each slot makes; its id is made of the schedule's name and the slot."""
    missed: Missed = Missed.LAST
    missed_limit: int = 100
    overlap: Overlap = Overlap.ALLOW
    jitter: Millis = 0
    """Each slot is put off by a part of this that depends on its name and slot alone."""


class ScheduleRecord(Struct, kw_only=True):
    """A schedule as it is kept. `next_slot` is the slot that comes next; None when there is none any more."""

    schedule: Schedule
    paused: bool
    next_slot: Millis | None
    last_slot: Millis | None = None
    last_run: str | None = None
    declared: bool = True
    """Whether code declared it (then code's changes apply at the next worker start) or it was added at run time."""
    broken: str | None = None
    """Why it can't be read: newer code has put it there. Then `schedule` tells no more than its name."""


class Fire(Struct, omit_defaults=True):
    """A schedule's slot fires: makes its runs and moves the schedule on, if `slot` is still the next one.

    It is decided by whoever sees the slot due, from the schedule alone; the store compares and swaps, and looks whether
    all runs that the schedule has made have ended, where `overlap` depends on that. A fire that comes second does
    nothing, nor does one for a schedule that is paused or gone. `starts` bear ids made of schedule and slot; without
    any the schedule merely moves on. Several fires of one schedule in an exchange take effect one after the other.
    """

    name: str
    slot: Millis
    starts: list[Start]
    next_slot: Millis | None
    overlap: Overlap = Overlap.ALLOW


class Retention(Struct, kw_only=True, frozen=True):
    """How long runs that ended stay: those older than `age`, and those beyond the newest `count`, are pruned. None is
    no bound. Of several policies that fit a run the most specific holds (workflow and state, workflow, state, none)."""

    workflow: str | None = None
    state: State | None = None
    age: Millis | None = None
    count: int | None = None


class FailureCause(Struct):
    """Failed runs of one workflow with one cause."""

    workflow: str
    cause: str
    runs: int
    last_at: Millis
    example: str
    """The id of the latest one."""


class BatchRecord(Struct):
    """How far a batch has come."""

    id: str
    total: int
    succeeded: int
    failed: int
    cancelled: int
    callback: str | None = None
    """The id of the run that starts when all have ended."""


class HeldCount(Struct):
    """How many queued runs of a queue are kept from running, by reason."""

    reason: str
    runs: int


class Unserved(Struct):
    """Runs that are ready, and that no live worker would take."""

    workflow: str
    version: str
    """That they are pinned to; empty when any will do."""
    runs: int


class QueueReport(Struct, kw_only=True):
    """A queue at one moment."""

    queue: str
    ready: int
    """How many runs may begin as soon as a worker takes them, and limits and rates let them."""
    oldest_ready_at: Millis | None
    """When the first of them was made; of each priority, the one that comes first."""
    running: int
    scheduled: int
    waiting: int
    held: list[HeldCount]
    """By reason. Runs that no live worker takes are among them if workers with other code serve the queue: if none does
    at all they are ready, so that workers can be started by that number."""
    kept: list[str]
    """What keeps some of those that are ready, in words: limits that are reached, rates that are used up."""
    unserved: list[Unserved]
    paused: bool
    limits: Limits
    ended_last_minute: int


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
    versions: dict[str, list[str]] = {}
    """By workflow: the versions whose pinned runs it serves."""
    sessions: int = 0
    """The most sessions that it owns at a time."""
    owned_sessions: int = 0
    """How many it owns now."""
