"""What a worker says to a store when it wakes, and what it hears: the two halves of `Store.exchange`.

Fencing. A claim hands out `(ref, token)`: `ref` is how the store finds the run fast (opaque to others), `token` is
unique to the claim. A write that bears them is accepted while that claim owns the run. After a settle the claim owns
nothing more; the same settle repeated, until the run's next one, is answered as if it had been the first.

Data of which workers have much in hand (`gc=False`) is never part of a cycle: the garbage collector passes it over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from perdure.model import Arrived, Checkpoint, Ended, Fire, Json, Millis, ScheduleRecord, Start, Wait

Ref: TypeAlias = int | str

CLAIM_LIMIT = 64
"""The most runs that one exchange claims: it bounds how long a store is kept busy by one call."""

CLAIM_BYTES = 2 * 1024 * 1024
"""The most bytes of inputs and checkpoints that one exchange brings. The first run is brought whatever its size.
Signals, and ends of others, come besides: a page for each run."""

PAGE = 256
"""The most checkpoints, signals, or ends of others, of one run that a claim brings; the rest is read page by page when
needed."""

PAGE_BYTES = 512 * 1024
"""The most bytes of such a page. The first one in it is brought whatever its size."""


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
    """Handed back without counting: `queued` again, same attempt, same place, and `Claim.cut_off` as it was."""
    CONTINUE = "continue"
    """Begins anew with `body` as its input, under the same id: no checkpoints, attempt 1, `queued`. Signals that
    wait are kept. Those that were consumed are gone; by their ids they are remembered until it continues once more, so
    that what is kept of a run that continues for ever does not grow."""


class Settle(Struct, omit_defaults=True, gc=False):
    """The end of a claim. `body` is the result, the error (failed, cancelled, retry) or the new input (continue).

    A run that is being cancelled is not parked, retried or continued: it becomes `queued` (and is claimed again with
    `cancelling` set) instead of `waiting` or `scheduled`. It ends at once where nobody may claim it (see
    `perdure.blame`): as cancelled, or as failed where that is for its deadline.
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
    progress. After any save the run's next claims are not `cut_off`: what was is counted, or something else has begun.
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
    """Whether a worker died with the run, so that something was cut off, and nothing was kept of the run since: claims
    that were handed back in good order stand between."""
    created_at: Millis
    deadline: Millis | None
    parent: str | None
    cancelling: Cancelling | None
    checkpoints: list[Checkpoint]
    """The first page of them, in order of position."""
    signals: list[Arrived]
    """The first page of those that wait, in order."""
    ended: list[Ended]
    """Of the runs that it was parked for, those that have ended: a page of them, see `unread`."""
    missing: list[str]
    """Of the waits that it was parked for, the keys of those for runs that there are not."""
    more_checkpoints: bool
    more_signals: bool
    group: str = ""
    session: str = ""
    version: str = ""
    labels: dict[str, str] = {}
    unread: list[str] = []
    """Runs that it was parked for and of which the claim does not tell: they may have ended, or may not be there, and
    are to be asked for."""


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
    """Whether more runs are ready for this worker (or more timers due) than this exchange could take, or more watches
    are true than it tells of: `seen` has a page of ends at most."""
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
