"""The store contract: what a store does for clients and workers, in verbs of the domain.

All verbs are set-based, every write of a worker is fenced, and every verb may be repeated when its reply was lost.
A store keeps one clock, its own, and every time below is by it. Wake-ups are hints: losing all of them only makes
things slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol, cast

from msgspec import Struct

from perdure.errors import StoreError
from perdure.model import (
    Arrived,
    BatchRecord,
    Checkpoint,
    Count,
    Ended,
    FailureCause,
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
    WorkerRecord,
)
from perdure.stores.exchange import PAGE, Exchange, Exchanged, Save

PRUNE_LIMIT = 500
"""The most runs that those who prune ask to have removed with one call."""


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


class Reclaimed(Struct):
    """What came of a look for dead workers."""

    count: int
    """How many runs were taken back."""
    next_at: Millis | None
    """When the first lease ends of those incarnations that are left; None when there are none."""
    late: bool = False
    """Whether the store came to it too late, so that it took nothing."""


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
    def parts(self) -> int:
        """In how many parts it counts the serials of an incarnation, which has so many fewer of them."""
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
        """What `perdure doctor` shows, also of a store that can't be opened. Reads only, and needs no open store;
        raises `StoreError` for one that can't be reached."""
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
        cleared. With `from_key`, also one that succeeded, and that checkpoint is cleared, with those within it (its
        key, a slash, and more) and all after it. Signals that a cleared checkpoint had consumed wait again, where they
        were.

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

    async def reclaim(self, asked: Millis | None = None) -> Reclaimed:
        """Takes back the runs of incarnations whose lease has ended, and forgets these.

        Takes nothing when the store comes to it half a second or more after `asked`, the time at which it was called,
        by the store's clock. A server that hung does what lay with it as soon as it goes on: that must not be among it,
        before those who live have renewed.

        Each such run is `queued` in its old place with `attempt` one up and `cut_off` set, or backs off, or ends as
        failed, as `perdure.blame.judge` decides (`perdure.causes.poisoned` makes the error). One that is being
        cancelled ends where nobody may claim it."""
        ...

    async def bury(self, name: str) -> int:
        """Like `reclaim`, for one incarnation that its supervisor saw die, whatever its lease; returns how many."""
        ...

    async def retire(self, worker: int) -> None:
        """Ends an incarnation in good order: what it still owns is released, not counted, as with `To.RELEASE`."""
        ...
