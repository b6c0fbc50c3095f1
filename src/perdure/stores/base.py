"""The store contract: what a store does for clients and workers, in verbs of the domain.

All verbs are set-based, every write of a worker is fenced, and every verb may be repeated when its reply was lost.
A store keeps one clock, its own, and every time below is by it. Wake-ups are hints: losing all of them only makes
things slower.

Fencing. A claim hands out `(ref, token)`: `ref` is how the store finds the run fast (opaque to others), `token` is
unique to the claim. A write that bears them is accepted while that claim owns the run. After a settle the claim owns
nothing more; the same settle repeated, until the run's next one, is answered as if it had been the first.

Data of which workers have much in hand (`gc=False`) is never part of a cycle: the garbage collector passes it over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias, cast

from msgspec import Struct

from perdure.errors import StoreError
from perdure.model import (
    Arrived,
    BatchRecord,
    Checkpoint,
    Count,
    Ended,
    FailureCause,
    Fire,
    Json,
    LimitRecord,
    Limits,
    Millis,
    QueueReport,
    Retention,
    Revision,
    RunQuery,
    RunRecord,
    Schedule,
    ScheduleRecord,
    Scope,
    Signal,
    Start,
    Started,
    State,
    Wait,
    WorkerRecord,
)

Ref: TypeAlias = int | str

CLAIM_LIMIT = 64
"""The most runs that one exchange claims: it bounds how long a store is kept busy by one call."""

CLAIM_BYTES = 4 * 1024 * 1024
"""The most bytes of inputs and checkpoints that one exchange brings. The first run is brought whatever its size."""

PRUNE_LIMIT = 500
"""The most runs that those who prune ask to have removed with one call."""

PAGE = 256
"""The most checkpoints, or signals, of one run that a claim brings; the rest is read page by page when needed."""


class To(StrEnum):
    """Where a settle takes the run."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRY = "retry"
    """The attempt failed and another one follows after `delay`; its error checkpoints are cleared (what succeeded
    is kept), `attempt` counts one up. The run keeps its place in the order of its queue. Signals that a cleared
    checkpoint had consumed wait again, where they were."""
    PARK = "park"
    """Nothing is in flight but `waits`. The run is `waiting` until one of them comes true; if one is true already
    (its time has come, such a signal is there, that run has ended), it is `queued` at once. A wait for a run that there
    is not (it never was, or was deleted or pruned) is true: removing a run wakes those that are parked for it."""
    RELEASE = "release"
    """Handed back without counting: `queued` again, same attempt, same place."""
    CONTINUE = "continue"
    """Begins anew with `body` as its input, under the same id: no checkpoints, attempt 1, `queued`. Signals that
    wait are kept. Those that were consumed are gone; by their ids they are remembered until it continues once more, so
    that what is kept of a run that continues for ever does not grow."""


class Settle(Struct, omit_defaults=True, gc=False):
    """The end of a claim. `body` is the result, the error (failed, cancelled, retry) or the new input (continue).

    A run that is being cancelled is not parked, retried or continued: it becomes `queued` (and is claimed again with
    `cancelling` set) instead of `waiting` or `scheduled`.
    """

    ref: Ref
    token: int
    to: To
    body: Json | None = None
    delay: Millis = 0
    waits: list[Wait] = []
    cause: str | None = None
    """Of a failure: type of the error and where it was raised."""


class Save(Struct, omit_defaults=True, gc=False):
    """A checkpoint to be kept, replacing what was kept under its key, unless the claim owns the run no more. It gets
    the next position of the run, also when it replaces one: what completes later is replayed later.

    `consumes` is the position of the signal that it takes with it, `starts` the child run that it makes: both happen
    in the same transaction or not at all. With `gives_back` the signal that its key took before waits again, where it
    was; of one batch that comes before any save that consumes. A child whose id exists is left as it is, and told of in
    `Exchanged.existed`; where that is a run of another workflow or input, the checkpoint is not kept either. A child
    whose unique key is taken is not made: the checkpoint's body becomes the id of the run that has the key, which is
    told of too. A save that completes (outcome `OK` or `ERROR`) sets the run's crash count back to nothing: it made
    progress.
    """

    ref: Ref
    token: int
    checkpoint: Checkpoint
    consumes: int | None = None
    starts: Start | None = None
    gives_back: bool = False


class Watch(Struct, omit_defaults=True):
    """A wait of a run that is owned and goes on running beside it: asks, with each exchange, whether it is true."""

    ref: Ref
    token: int
    wait: Wait


class Told(Struct, omit_defaults=True):
    """What a run says of its own progress; the latest one is kept."""

    ref: Ref
    token: int
    status: Json


class Exchange(Struct, omit_defaults=True):
    """All that a worker has to say when it wakes. The parts take effect in this order, in one transaction:
    saves, progress, settles, fires, due timers and deadlines (a bounded number), claims.

    A run whose deadline is due ends as failed (`deadline_exceeded`) if it isn't running, else it is to be cancelled
    with `Cancelling.deadline` set, and fails then. Its descendants are cancelled, whatever their state, for
    `PARENT_DEADLINE_PASSED`. One that is being cancelled already is left to that.

    Queues take turns: each run that is claimed is the first one (by priority, then place) that may begin in the next
    queue that has any, in the order of their names (by code point), round from the last to the first, beginning behind
    `after`. (Where all that is ready may begin: the n-th of each queue comes before the n+1-th of any, and of the n-th
    ones those of the queues behind `after` come first.)

    `serial` counts the exchanges of an incarnation. A repeated one (`repeated`, after an error that leaves open
    whether it took effect) bears the serial of the first and gets the same claims.
    Tokens of the claims are `(worker << 40) + (serial << 8) + n`: unique without asking the store for a number. (A
    store with partitions counts serials for each of them, in the same 32 bits.)
    """

    worker: int
    serial: int
    repeated: bool = False
    saves: list[Save] = []
    settles: list[Settle] = []
    slots: int = 0
    """How many runs it has room for; the store claims at most `CLAIM_LIMIT` of them."""
    watches: list[Watch] = []
    told: list[Told] = []
    fires: list[Fire] = []
    after: str = ""
    """The queue of the run that it claimed last; "" before the first one."""
    owned: list[tuple[Ref, int]] | None = None
    """All claims that it believes to own, from time to time (not with each exchange): those of runs that are gone are
    told of as refused, though nothing was said of them. So a run that is deleted stops also when it has nothing to say.

    A store that can lose what it answered, in a failover, gives back those that it has for the worker besides: what the
    worker said of their end is lost, and nobody would care for them.
    """
    skips: list[str] = []
    """Names of schedules that it can't read, and need not be told of."""
    draining: bool = False
    """It takes nothing more: the sessions that it owns of which no run is running, after the settles, are given up."""


class Cancelling(Struct, omit_defaults=True):
    """Why an owned run is to be cancelled. `deadline` says that its own deadline passed: it ends as failed then. The
    reason is a text for people, and whoever cancels may choose any."""

    reason: str
    deadline: bool = False


class Claim(Struct, gc=False):
    """A run that is now owned by the worker, with all that it needs to go on."""

    ref: Ref
    token: int
    id: str
    workflow: str
    queue: str
    input: Json
    attempt: int
    crashes: int
    cut_off: bool
    """Whether the claim before this one ended with its worker's death, so that something was cut off."""
    created_at: Millis
    deadline: Millis | None
    parent: str | None
    cancelling: Cancelling | None
    checkpoints: list[Checkpoint]
    """The first `PAGE` of them, in order of position."""
    signals: list[Arrived]
    """The first `PAGE` of those that wait, in order."""
    ended: list[Ended]
    """Of the runs that it was parked for, those that have ended."""
    missing: list[str]
    """Of the waits that it was parked for, the keys of those for runs that there are not."""
    more_checkpoints: bool
    more_signals: bool
    group: str = ""
    session: str = ""
    version: str = ""
    labels: dict[str, str] = {}


class Seen(Struct):
    """A watched wait that is true: the signal that waits (the first of its name), the run that ended, or that there is
    no such run. With none of these its time is over."""

    ref: Ref
    token: int
    key: str
    signal: Arrived | None = None
    ended: Ended | None = None
    missing: bool = False


class Existed(Struct):
    """A child start, by the key of its checkpoint, whose id was there, or whose unique key led to run `id`: `same` is
    that of `Started`.

    If it is False the checkpoint was not kept: the next attempt comes to the same answer. In the reply to a repeated
    exchange a child that the first one made may be among these, as `same`."""

    token: int
    key: str
    id: str
    same: bool
    refused: str = ""
    """Why it can't be made, where that is: `same` is False then."""


class Exchanged(Struct):
    """The reply to an exchange."""

    now: Millis
    claims: list[Claim]
    refused: list[int]
    """Tokens in all that was said of runs that own their run no more; none of their writes took effect."""
    cancelled: list[tuple[int, Cancelling]]
    """Owned runs, by token, that are to be cancelled; repeated in each reply until they settle."""
    seen: list[Seen]
    next_at: Millis | None
    """When the next timer or deadline is due; None when there is none."""
    more: bool
    """Whether more runs are ready for this worker (or more timers due) than this exchange could take."""
    due: list[ScheduleRecord] = []
    """Schedules whose next slot is due, at most a few; the worker answers with fires in its next exchange. They are
    told whatever the free slots; one that can't be read has `broken` set, and the worker names it in `skips` from then
    on, so that it does not stand in the way of others. `next_at` counts the slots to come."""
    gone: bool = False
    """The store does not know this incarnation: it was declared dead, or retired. It owns nothing and got nothing."""
    existed: list[Existed] = []
    """Children of `saves` that were there already."""
    unsaid: list[int] = []
    """Tokens of which a part of the store that can't be reached did not take, or may not have taken, what was said
    (saves, progress, settles): it is to be said again, all of it, with an exchange to come. What was done is not done
    twice. Stores that have no parts never say so."""


class Registration(Struct, kw_only=True):
    """A worker incarnation that begins. `name` is unique to it, so that whoever started it can bury it."""

    name: str
    host: str
    pid: int
    queues: list[str]
    workflows: list[str]
    versions: dict[str, list[str]] = {}
    """By workflow: the versions whose pinned runs it serves. Runs that are not pinned it serves always."""
    sessions: int = 0
    """The most sessions that it owns at a time; 0 for none."""
    session_idle: Millis = 60_000
    """How long it keeps a session of which no run is there."""
    concurrency: int
    lease: Millis


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct):
    """One line of `perdure doctor`: what was looked at, what was found, and what to do about it."""

    severity: Severity
    what: str
    advice: str = ""


class Topic(StrEnum):
    """What a subscriber wants to be told of."""

    WORK = "work"
    """Something may be ready to be claimed, cancelled, or seen by a watch: for workers."""
    ENDED = "ended"
    """A run may have ended: for those who wait for results."""
    STATUS = "status"
    """A run may have told of its progress, or its state may have changed in another way than by its start or its end:
    for those who follow it."""


class Subscription(Protocol):
    """Wake-ups for one event loop; open until closed."""

    async def close(self) -> None: ...


class Keeper(Protocol):
    """Keeps the lease of one incarnation, from a thread and on a connection of its own."""

    def renew(self) -> bool:
        """Extends the lease, whether or not it ran out; False when the incarnation is gone. Blocks; may raise
        `StoreUnavailable`, and is then tried again."""
        ...

    def close(self) -> None: ...


class Within(Protocol):
    """Verbs on a connection of the application: they take effect when its transaction commits, and never happened when
    that is rolled back. Errors that are the connection's own stay the driver's."""

    @property
    def is_async(self) -> bool:
        """Whether the connection belongs to an event loop. With another one the verbs block, and never suspend."""
        ...

    async def enqueue(self, starts: Sequence[Start]) -> list[Started]:
        """See `Store.enqueue`. Groups and sessions are seen to after the commit."""
        ...

    async def signal(self, signal: Signal) -> None:
        """See `Store.signal`. It is delivered after the commit, unless the run has ended by then."""
        ...

    async def cancel(self, run_id: str, reason: str, *, children: bool = True) -> State:
        """See `Store.cancel`. It is carried out after the commit; returns the state that the run has now."""
        ...

    async def keep(self, save: Save) -> Kept:
        """Keeps a checkpoint that completes, if the claim owns the run and nothing that completes is kept under its
        key. Of two transactions that keep one, the second waits for the first. Until the transaction ends the worker
        is not declared dead."""
        ...


class Kept(Struct):
    """What became of a checkpoint that was to be kept within a transaction. When it was refused, the transaction is to
    be rolled back."""

    transaction: str = ""
    """By which the store knows the transaction later."""
    refused: str = ""
    """"lost" when the claim owns the run no more, "kept" when there is one that completes."""


class Joining(Protocol):
    """What a store has besides when it lives in the application's own database."""

    def within(self, connection: object) -> Within:
        """Takes a connection (or session) of any driver that it knows. Raises `InvalidInput` for anything else, and
        where no transaction is open."""
        ...

    async def is_over(self, transaction: str) -> bool:
        """Whether a transaction that kept a checkpoint has ended, in whatever way; what it wrote can be seen then, or
        never will be."""
        ...


def joining(store: Store) -> Joining:
    """The store as one that lives in the application's own database; `StoreError` for one that does not."""
    if not hasattr(store, "within"):
        raise StoreError(
            "transaction= needs a store on PostgreSQL, in the database that the transaction is of; this one is another:"
            " do it when the transaction has committed"
        )
    return cast(Joining, store)


class Store(Protocol):
    """Where runs live. See the module's text for what holds for every verb.

    Errors of drivers leave as `StoreError` (and its kinds) only. Every method may be called from any event loop.
    """

    @property
    def calls(self) -> int:
        """How many calls this object has made to its store, for measurements: each is one statement, or one transaction
        of an embedded store."""
        ...

    @property
    def beside(self) -> bool:
        """Whether exchanges cost the worker's process next to nothing while they are under way, so that its runs had
        better be at work meanwhile than come all together in one. An embedded store takes its turns with them."""
        ...

    async def busy(self) -> float | None:
        """How many milliseconds its server has spent on such calls since it began, for all who call, for measurements;
        None where that can't be told."""
        ...

    # --- lifecycle

    async def open(self) -> None:
        """Connects. An embedded store makes its schema; every store refuses one made by a newer version."""
        ...

    async def close(self) -> None: ...

    async def migrate(self) -> list[str]:
        """Brings the schema up to date; returns the names of the migrations applied now. Safe from many processes."""
        ...

    async def pending(self) -> list[str]:
        """The names of the migrations that `migrate` would apply now. Reads only, and needs no open store."""
        ...

    async def script(self) -> str:
        """What `migrate` would run now, as the store's own shell takes it; empty when it is up to date. Reads only."""
        ...

    async def check(self) -> list[Finding]:
        """What `perdure doctor` shows. Reads only."""
        ...

    async def subscribe(self, topic: Topic, wake: Callable[[], None]) -> Subscription:
        """Calls `wake`, in the event loop of the caller, whenever another transaction of any process may have
        changed something of that topic. Wake-ups may be merged, early, or lost."""
        ...

    async def now(self) -> Millis:
        """The store's time, for what clients have to work out from it: the next slot of a schedule, for example."""
        ...

    # --- clients

    async def enqueue(self, starts: Sequence[Start]) -> list[Started]:
        """Makes runs, in order; the answer has one item for each. Two of one id in one call are one run.

        The first run of a group sets its limit, for as long as any run of it is there; one that was set stands."""
        ...

    async def signal(self, signal: Signal) -> None:
        """Keeps a signal for its run, and wakes the run if it is parked for that name. A repetition does nothing, for
        as long as the signal is kept or remembered (see `To.CONTINUE`).

        Raises `RunNotFound`, or `RunEnded` when the run is final."""
        ...

    async def cancel(self, run_id: str, reason: str, *, children: bool = True) -> State:
        """Ends a run that is not running, now; asks for the end of one that is. Returns the state that it has now.

        Its descendants follow, unless `children` is False. A run that has ended stays as it is, and its live
        descendants follow all the same. The outcome of a cancelled run is the reason, as a JSON string. Raises
        `RunNotFound`."""
        ...

    async def retry(self, run_id: str, *, from_key: str | None = None) -> None:
        """Queues a failed or cancelled run once more: attempt one up, crashes 0, no deadline; error checkpoints are
        cleared. With `from_key`, also one that succeeded, and that checkpoint and all after it are cleared. Signals
        that a cleared checkpoint had consumed wait again, where they were.

        Raises `RunNotFound`, `RunNotEnded` (also for one that succeeded, without `from_key`), `CheckpointNotFound`, or
        `KeyTaken` when its unique key is another live run's now. The one verb of a client that is not safe to repeat
        blindly: after a lost reply it raises `RunNotEnded`."""
        ...

    async def load(self, run_id: str) -> RunRecord | None: ...

    async def ended(self, run_ids: Sequence[str]) -> list[Ended]:
        """Those of the runs that have ended, with their outcomes."""
        ...

    async def missing(self, run_ids: Sequence[str]) -> list[str]:
        """Those of the ids that no run has: it never had, or the run was deleted or pruned."""
        ...

    async def history(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Checkpoint]:
        """Checkpoints of a run, in order of position, from the first one with a position over `after`."""
        ...

    async def find(self, run_id: str, key: str) -> Checkpoint | None: ...

    async def signals(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Arrived]:
        """Signals that wait at a run, in order of position, from the first one with a position over `after`."""
        ...

    async def runs(self, query: RunQuery) -> list[RunRecord]: ...

    async def ahead(self, run_id: str) -> int:
        """How many runs of its queue are ready and come before a queued run; at most 1000 are counted."""
        ...

    async def counts(self) -> list[Count]: ...

    async def workers(self) -> list[WorkerRecord]:
        """The incarnations whose lease has not ended."""
        ...

    async def delete(self, run_id: str, *, force: bool = False) -> int:
        """Removes a run and its descendants with all that is kept of them; returns how many runs.

        Raises `RunNotEnded` when one of them has not ended, unless `force`: then nothing that its late worker says
        brings it back. Raises `RunNotFound`."""
        ...

    async def retry_many(self, query: RunQuery, *, dry_run: bool = False) -> list[str]:
        """`retry` for the failed (or cancelled, as the query says) runs that match, at most `query.limit`; their ids.
        With `dry_run` only says which. Those whose unique key is another live run's are left out."""
        ...

    async def failures(self, query: RunQuery) -> list[FailureCause]:
        """Failed runs by cause, most first."""
        ...

    async def label(self, run_id: str, labels: dict[str, str]) -> None:
        """Adds to, or changes, the labels of a run; an empty value removes one. Raises `RunNotFound`, and
        `InvalidInput` when it would have more than `MOST_LABELS`."""
        ...

    # --- batches

    async def open_batch(self, batch: str, starts: Sequence[Start], callback: Start | None) -> list[Started]:
        """Makes the runs of a batch (all or none, whatever their number; a repeat changes nothing) and the run that is
        the callback, which waits until all of them have ended.

        Runs to which a unique key leads are not of the batch and do not count. Raises `IdConflict`, and makes nothing,
        when the id of one of its runs, or of the callback, is that of a run which is not of this batch, or when the
        batch is there already with other runs, another number of them, or another callback."""
        ...

    async def batch(self, batch: str) -> BatchRecord | None: ...

    # --- limits and pauses

    async def set_limits(self, scope: Scope, limits: Limits, who: str, *, declared: bool = False) -> LimitRecord:
        """Sets what holds for a scope from now on, as a new revision if it differs; returns what holds.

        `declared` says that code asks for it: then it is set only if nothing was ever set for the scope, and otherwise
        what is stored stands. Lowering a limit takes nothing from runs that are running; those of a group that have
        begun and come again wait for their turn. The limit of a group is for each queue, its rate for all together."""
        ...

    async def pause(self, scope: Scope, who: str, *, paused: bool = True) -> LimitRecord:
        """Keeps runs of a scope from beginning (or lets them again), as a revision. What runs goes on; starts are
        accepted."""
        ...

    async def limits(self) -> list[LimitRecord]:
        """What is stored for scopes, with how much of it is used."""
        ...

    async def revisions(self, scope: Scope | None = None, *, limit: int = 50) -> list[Revision]:
        """The changes, latest first."""
        ...

    async def queues(self) -> list[QueueReport]: ...

    # --- schedules

    async def put_schedule(self, schedule: Schedule, next_slot: Millis | None, *, declared: bool) -> ScheduleRecord:
        """Keeps a schedule by its name. One that is there already with the same timing keeps its next slot and pause;
        other timing takes `next_slot`. A declared one does not overwrite one that was added at run time."""
        ...

    async def schedules(self) -> list[ScheduleRecord]:
        """All of them, by name; those that can't be read with `broken` set."""
        ...

    async def pause_schedule(self, name: str) -> ScheduleRecord:
        """Keeps a schedule from firing. Raises `ScheduleNotFound`."""
        ...

    async def resume_schedule(self, name: str, next_slot: Millis | None) -> ScheduleRecord:
        """Lets a paused schedule fire again: from `next_slot` on if that is later than where it stands, otherwise from
        there, as after a time in which nobody could fire; with None it is over. One that is not paused stays as it is.

        Raises `ScheduleNotFound`."""
        ...

    async def remove_schedule(self, name: str) -> None:
        """Raises `ScheduleNotFound`."""
        ...

    # --- retention

    async def prune(self, policies: Sequence[Retention], *, limit: int) -> int:
        """Removes at most `limit` runs that ended and that the policies let go, with everything of them, oldest end
        first (by the order of finishing, not the millisecond); returns how many. A run whose parent lives stays, and so
        does one whose batch has runs left, or a callback that has not ended. It may take several transactions.
        A batch that was opened without runs and callback goes by the age that holds for what succeeds."""
        ...

    # --- workers

    async def register(self, worker: Registration) -> int:
        """Begins an incarnation, with a lease from now; returns its id, which is never used again. From then on its
        exchanges claim runs of its workflows on its queues, and of nothing else.

        A repeat after a lost reply begins another one of the same name, which `bury` takes along."""
        ...

    def keeper(self, worker: int, lease: Millis) -> Keeper: ...

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """One call per wake of a worker: see `Exchange`."""
        ...

    async def reclaim(self) -> int:
        """Takes back the runs of incarnations whose lease has ended, and forgets these; returns how many runs.

        Each such run is `queued` in its old place with `attempt` one up and `cut_off` set, or backs off, or ends as
        failed, as `perdure.blame.judge` decides (`poisoned` makes the error)."""
        ...

    async def bury(self, name: str) -> int:
        """Like `reclaim`, for one incarnation that its supervisor saw die, whatever its lease; returns how many."""
        ...

    async def retire(self, worker: int) -> None:
        """Ends an incarnation in good order: what it still owns is released, not counted."""
        ...
