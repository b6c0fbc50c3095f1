"""The execution of one claimed run, from its claim to its settle."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from perdure.causes import DEADLINE_PASSED
from perdure.clock import Alarm
from perdure.engine import settling
from perdure.engine.definitions import WorkflowDefinition
from perdure.engine.driving import drive, has_thread
from perdure.engine.flight import InFlight
from perdure.engine.halt import ContinueAsNew, Halt
from perdure.engine.history import Ends, History, Inbox
from perdure.engine.interrupts import is_ctrl_c
from perdure.engine.order import Order
from perdure.engine.parking import Waits
from perdure.engine.points import Point
from perdure.engine.scope import Scope, attempt_here, enter, kept_within, leave
from perdure.engine.spawned import Spawned
from perdure.engine.tasks import unwind
from perdure.engine.threads import InThread, guarded
from perdure.engine.turns import NEW, Turns
from perdure.errors import ArgumentsChanged, DefinitionError
from perdure.failures import encode_failure
from perdure.model import Checkpoint, Json, Kind, Millis, Outcome, Start, Wait
from perdure.stores.exchange import Cancelling, Claim, Existed, Save, Seen, Settle, To, Told

if TYPE_CHECKING:
    from perdure.engine.worker import Runtime

T = TypeVar("T")

_MOST_REFUSED = 100
"""How often code that is closed where it stands may call something in vain."""

_BEHIND_ALL = 1 << 40
"""A position behind all that the store had kept of a run when it was claimed."""

_LONG_REPLAY = 50
"""From so many outcomes on that a run had to replay, it is worth while not to put it away for a moment only."""
_LONGEST_STAY = 5.0
"""Seconds that it stays, at most."""

_REPLAY_PATIENCE = 1.0
"""Seconds that replay may take to come to something more when the run is to be cancelled where it is new."""


class Execution:
    """One claim at work: runs the workflow function and knows what of it is in flight.

    `run` is the life of it on one screen; steps and waits come in through `active`, `save` and `wait`.

    Parts that few runs need are made when they are asked for. One that has ended without having waited is part of no
    cycle: there are so many that finding them would cost the garbage collector much.
    """

    def __init__(self, runtime: Runtime, claim: Claim, definition: WorkflowDefinition) -> None:
        self.runtime = runtime
        self.claim = claim
        self.definition = definition
        self.ref, self.token = claim.ref, claim.token
        self._claimed_at = runtime.clock.now()
        self._began = runtime.loop.time()
        self.history = History(claim, runtime.store)
        self.spawned = Spawned(runtime.loop)
        self.cancelling = claim.cancelling
        self.over = False
        """Nothing that this execution says counts any more: it is parked, lost, handed back or settled."""
        self.progressed = False
        """Whether something new has completed since the claim, so that what comes next wasn't cut off before it."""
        self._status: Json | None = None
        """What the run said of its progress and the store does not know yet."""
        self.delivered = False
        """Whether its code was cancelled."""
        self._replaying = bool(claim.checkpoints)
        self._replayed = 0
        self._replay_took = 0.0
        self.thread_told = False
        self._closing = False
        self.active = 0
        """How many steps, reads and checkpoints are in flight: what is no mere wait."""
        self._steps: set[str] = set()
        self._left_behind: list[asyncio.Future[None]] = []
        """Of attempts that wait for steps that the one before left at work."""
        self.order = Order()
        self._waits: Waits | None = None
        self._turns: Turns | None = None
        self._idle: asyncio.Future[None] | None = None
        self._names: set[str] = set()
        self._unwinding = False
        self._refused = 0
        self._kept = 0
        self._deadline: Alarm | None = None
        self.task: asyncio.Task[None] = runtime.new_task(self.run())

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Its records carry `run` and `attempt`."""
        logger = logging.getLogger(f"perdure.run.{self.definition.name}")
        return logging.LoggerAdapter(logger, {"run": self.claim.id, "attempt": self.claim.attempt})

    @cached_property
    def inbox(self) -> Inbox:
        """The signals that wait for it."""
        return Inbox(self.claim, self.runtime.store)

    @cached_property
    def ends(self) -> Ends:
        """What became of the runs that it was parked for."""
        return Ends(self.claim, self.runtime.store)

    @property
    def waits(self) -> Waits:
        """What it waits for."""
        if self._waits is None:
            self._waits = Waits(self)
        return self._waits

    @property
    def turns(self) -> Turns:
        """The order in which outcomes arrive at its code."""
        if self._turns is None:
            self._turns = Turns(self.runtime.loop, lambda: self.active > 1)
        return self._turns

    # --- the life of it

    async def run(self) -> None:
        """Decodes the input, runs the workflow, settles what became of it."""
        scope = Scope(self, self.task if self.definition.is_async else None)
        enter(scope)
        if self.claim.deadline is not None:
            self._deadline = self.runtime.clock.call_at(
                self.claim.deadline, lambda: self.cancel(Cancelling(DEADLINE_PASSED, deadline=True))
            )
        try:
            settle = await self._attempt(scope)
            self._closing = True
            self.spawned.orphan()
            while self.active and not self.over:  # a failed step does not take its siblings' checkpoints with it
                self._idle = self.runtime.loop.create_future()
                await self._idle
            if not self.over:
                self.tap(Point.BEFORE_SETTLE, "")
                self._speak()
                self.over = True
                self.runtime.pump.settle(settle)
        except asyncio.CancelledError:
            if not self.over:  # cancelled while it waited for its last steps, or the loop ends
                self.over = True
                self.runtime.pump.settle(
                    settling.release(self) if self.cancelling is None else settling.cancelled(self)
                )
        except BaseException as error:
            if not self.over:
                # Whatever it is that went wrong here, a run that nobody executes must not stay owned.
                self.over = True
                self.runtime.pump.settle(settling.settle(self, To.FAILED, encode_failure(error)))
                if is_ctrl_c(error):
                    raise
        finally:
            self._close()

    async def _attempt(self, scope: Scope) -> Settle:
        try:
            args, kwargs = self.definition.signature.decode(self.claim.input)
            if self.definition.is_async:
                value = await self.definition.fn(*args, **kwargs)
            else:
                value = await self._sync_body(scope, lambda: self.definition.fn(*args, **kwargs))
            body, _ = self.definition.signature.encode_result(
                value, f"workflow {self.definition.name}", self.runtime.max_value_bytes
            )
            if self.cancelling is not None and self.cancelling.deadline:
                return settling.cancelled(self)  # it ended, but not in time
        except ContinueAsNew as again:
            return settling.settle(self, To.CONTINUE, again.body)
        except asyncio.CancelledError as error:
            if self.over:
                raise
            if self.cancelling is not None:
                return settling.cancelled(self)
            if self.task.cancelling() and self.runtime.ending:
                raise
            return settling.failed(self, error)
        except BaseException as error:
            if self.over or is_ctrl_c(error):
                raise
            return settling.failed(self, error)
        return settling.settle(self, To.SUCCEEDED, body)

    async def _sync_body(self, scope: Scope, fn: Callable[[], T]) -> T:
        """Runs a sync workflow. When the run is cancelled it ends as its function does: a thread can't be stopped."""
        future = self.in_thread(scope, fn).outcome
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                if self.over or self.cancelling is None:  # lost, or the event loop ends
                    raise
        return future.result()

    def _close(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.spawned.orphan()
        self.spawned.cancel()
        self._end_waits()
        self.runtime.finished(self)
        leave(self)

    def _end_waits(self) -> None:
        if self._waits is not None:
            self._waits.end()

    # --- what others ask of it

    def cancel(self, cancelling: Cancelling, replayed: int = -1) -> None:
        """Has the run's code cancelled, once; async code may clean up, sync code sees `cancelling`.

        While the code replays it is where the run has been long ago: it is cancelled when it comes to something new,
        or when it has come to nothing for a while, to no more than it had `replayed` before.
        """
        if self.over or self.delivered:
            return
        if self.cancelling is None:
            self.cancelling = cancelling
        if self._replaying and self._replayed > replayed:
            self.runtime.loop.call_later(_REPLAY_PATIENCE, self.cancel, cancelling, self._replayed)
            return
        self._replaying = False
        self._deliver()

    def _deliver(self) -> None:
        reason = None if self.cancelling is None else self.cancelling.reason
        self.delivered = True
        self.task.cancel(reason)
        self.spawned.cancel(reason)

    def lost(self) -> None:
        """Stops: another worker owns the run now, or will."""
        self.halt()

    def release(self) -> None:
        """Stops and hands the run back, uncounted."""
        if not self.over:
            self.halt()
            self.runtime.pump.settle(settling.release(self))

    def halt(self) -> None:
        """Stops without a word to the store.

        With a step in flight the code is cancelled: it may have something open. Code that merely waits is closed where
        it stands, like a generator that nobody reads on: its `finally` runs, and nothing of it goes on. (What it could
        catch, or get as the result of a task, would let it go on with what isn't so.)
        """
        if self.over:
            return
        self.over = True
        self.spawned.orphan()
        self._end_waits()
        self.runtime.finished(self)
        # In the run, whoever says this: so what its clean-up calls is known to be of a run that is over.
        context = contextvars.copy_context()
        context.run(enter, Scope(self, self.task))
        if asyncio.current_task() in self.tasks:
            self.runtime.loop.call_soon(self._unwind, context=context)  # code that runs just now can't be closed
        else:
            context.run(self._unwind)

    def _unwind(self) -> None:
        self._unwinding = True
        for task in self.tasks:  # from within: a group would cancel what is open in it
            if not task.done():
                unwind(task, cancel=bool(self._steps) or has_thread(task))
        self._unwinding = False

    @property
    def undisturbed(self) -> bool:
        """Whether nothing ends it from without, so that what is cancelled in it is cancelled by its own code."""
        return not self.over and not self.runtime.ending and self.cancelling is None

    @property
    def ending(self) -> bool:
        """Whether nothing new may begin: the execution is over, or its function has ended."""
        return self.over or self._closing

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """Every task that is known to run code of this run and is not done, the innermost first."""
        return self.spawned.tasks if self.task.done() else [*self.spawned.tasks, self.task]

    def track(self, task: asyncio.Task[Any] | None) -> None:
        """Learns of a task of the user's own making, so that it ends with the run. (Of one that is over, code is closed
        in tasks of others.)"""
        if task is not None and task is not self.task and not self.over:
            self.spawned.track(task)

    # --- what steps and waits need

    def now(self) -> Millis:
        """The store's time."""
        return self.runtime.clock.now()

    def tap(self, point: Point, key: str) -> None:
        """Lets a test look in, or end the worker here."""
        if self.runtime.tap is None:
            return
        try:
            self.runtime.tap(point, self.claim.id, key)
        except Halt:
            raise asyncio.CancelledError from None

    async def check(self) -> None:
        """Raises `CancelledError` when nothing new may begin: the execution is over, or what the call is part of has
        ended, the attempt of a step or the workflow's function."""
        attempt = attempt_here()
        if self.over or (self._closing if attempt is None else attempt.over):
            self._refused += 1
            if not self._unwinding or self._refused > _MOST_REFUSED:
                # Code that swallows it in a loop must not hold up everybody else; code that is closed can't wait.
                await asyncio.sleep(0)
            raise asyncio.CancelledError

    def claim_name(self, key: str) -> None:
        """Takes a key that the user gave; twice in one attempt is a mistake."""
        if key in self._names:
            raise DefinitionError(
                f"two calls in one run have the key {key}; a key given with .options(key=…) must be unique"
            )
        self._names.add(key)

    def forget_names(self, step: str) -> None:
        """Lets the next attempt of a step give the keys that the one before it gave."""
        if self._names:
            self._names = {name for name in self._names if not name.startswith(f"{step}/")}

    async def saved(self, key: str, kind: Kind, digest: str = "") -> Checkpoint | None:
        """The checkpoint of an earlier attempt under that key; `ArgumentsChanged` if it stands for something else."""
        self.track(asyncio.current_task(self.runtime.loop))
        await self.check()
        within = kept_within()
        found = self.history.take(key) if within is None or key not in within else within[key]
        if found is None and not self.history.complete:
            self.begin()
            try:
                found = await self.history.fetch(key)
            finally:
                self.end()
            await self.check()
        if found is None:
            return None
        if found.kind is not kind:
            raise ArgumentsChanged(
                f"{key} was a {found.kind} in an earlier attempt of run {self.claim.id} and is a {kind} now; give the"
                " new one another name, or let runs in flight end before the deploy"
            )
        if found.digest != digest:
            raise ArgumentsChanged(
                f"{kind} {key} of run {self.claim.id} is called with other arguments than in an earlier attempt; make"
                " what they depend on (time, random numbers, unordered data) the result of a step, or name the call"
                " with .options(key=…)"
            )
        if within is not None:
            within[key] = found
        return found

    async def replay(self, when: Millis, position: int = 0) -> None:
        """Lets kept outcomes arrive in the order in which they came about, so that `as_completed`, `wait` and the like
        decide as they did before."""
        self._replayed += 1
        self.begin()
        try:
            await self.turns.take(when, position)
        finally:
            self.end()
        await self.check()

    async def save(
        self, checkpoint: Checkpoint, *, consumes: int | None = None, starts: Start | None = None
    ) -> Existed | None:
        """Makes a checkpoint durable; tells of the child that it starts if there was one already."""
        await self.order.begin_save()
        within = kept_within()
        before = None if within is None else within.get(checkpoint.key)
        try:
            if self.over:
                raise asyncio.CancelledError
            saved = self.runtime.pump.save(Save(self.claim.ref, self.token, checkpoint, consumes, starts))
            self.keep(checkpoint)  # now: it becomes durable, also when the call is cancelled before that
            existed = await saved
        except Exception:
            if within is not None:
                del within[checkpoint.key]
                if before is not None:
                    within[checkpoint.key] = before
            raise
        finally:
            self.order.end_save()
        if checkpoint.outcome is not Outcome.OPEN:
            await self.completed()
        return existed

    def keep(self, checkpoint: Checkpoint) -> None:
        """Has it found by the next attempt of a step that the calling code is part of, as if it had been read."""
        within = kept_within()
        if within is not None:
            self._kept += 1
            within[checkpoint.key] = replace(checkpoint, saved_at=self.now(), position=_BEHIND_ALL + self._kept)

    async def completed(self) -> None:
        """A checkpoint that completes is durable: lets the code that waits for it go on, in its turn."""
        self.progressed = True
        if self.active > 1 or (self._turns is not None and self._turns.going):
            await self.turns.take(self.now(), NEW)

    def tell(self, status: Json) -> None:
        """Tells of the run's progress. While the code replays nothing is said but the last word, once it is past."""
        self._status = status
        if not self._replaying:
            self._speak()

    def _speak(self) -> None:
        status, self._status = self._status, None
        if status is not None and not self.over:
            self.runtime.pump.tell(Told(self.claim.ref, self.token, status))

    def save_soon(self, checkpoint: Checkpoint, *, gives_back: bool = False) -> asyncio.Future[Existed | None]:
        """Has a checkpoint written with the next exchange, at the latest with the settle of this claim; when it
        `gives_back`, the signal that it had taken waits again."""
        self.keep(checkpoint)
        return self.runtime.pump.save(Save(self.claim.ref, self.token, checkpoint, gives_back=gives_back))

    def in_flight(self) -> InFlight:
        """While something of the run is at work, and not merely waiting."""
        return InFlight(self)

    def begin(self, step: str = "") -> None:
        """Something of the run is at work from here on, until `end`; `step` is its key if it is a step."""
        if step:
            self._steps.add(step)
        self.active += 1

    def end(self, step: str = "") -> None:
        """It is over."""
        if step:
            self._steps.discard(step)
            for waiting in self._left_behind:
                if not waiting.done():
                    waiting.set_result(None)
        self.active -= 1
        self.runtime.stirred()
        if self.active == 0:
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
            if self._waits is not None:
                self._waits.consider_parking()

    async def left_behind(self, step: str) -> None:
        """Waits for what an attempt of a step that failed has left at work within it (`gather` does that): the next
        attempt finds what it comes to, and does not begin it beside itself. Waits that it left are over."""
        prefix = f"{step}/"
        while inner := [each for each in self._steps if each.startswith(prefix)]:
            self._abandon_waits(prefix, inner)
            waiting: asyncio.Future[None] = self.runtime.loop.create_future()
            self._left_behind.append(waiting)
            try:
                await waiting
            finally:
                self._left_behind.remove(waiting)
        self._abandon_waits(prefix, [])

    def _abandon_waits(self, prefix: str, but_within: list[str]) -> None:
        if self._waits is not None:
            self._waits.abandon(prefix, tuple(f"{step}/" for step in but_within))

    @property
    def steps(self) -> frozenset[str]:
        """The keys of the steps that are in flight."""
        return frozenset(self._steps)

    @property
    def blocked(self) -> bool:
        """Whether nothing of it can go on before something that it waits for comes true, though it isn't parked: a step
        waits itself, or the run cleans up while it is being cancelled, or stays for a while."""
        waits = self._waits
        if waits is None or not waits.keys:
            return False
        if not self.active:
            return self.cancelling is not None or waits.staying
        return self.active == len(self._steps) and all(
            any(key.startswith(f"{step}/") for key in waits.keys) for step in self._steps
        )

    async def live(self) -> None:
        """Code passes from replay to something new. A run whose cancellation was asked for before this claim gets it
        here, where it would have been. (A task that the workflow's code had cancelled before goes on: it cleans up.)"""
        await self.check()
        if self._replaying:
            self._replaying = False
            self._replay_took = min(self.runtime.loop.time() - self._began, _LONGEST_STAY)
        self._speak()
        if self.cancelling is not None and not self.delivered:
            task = asyncio.current_task(self.runtime.loop)
            cleans_up = task is not self.task and task is not None and task.cancelling() > 0
            self._deliver()
            if not cleans_up:
                await self.runtime.loop.create_future()

    def in_thread(self, scope: Scope, fn: Callable[[], T]) -> InThread[T]:
        """Runs sync code in a thread that knows the scope."""
        context = contextvars.copy_context()
        context.run(enter, scope)
        return InThread(self.runtime.threads.at(scope.depth).submit(lambda: guarded(fn), context))

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a step or a wait for sync code of this run, which blocks until it is over."""
        return drive(self, work)

    # --- waiting and parking

    async def wait(self, wait: Wait) -> Seen | None:
        """Waits until the condition is true, or (None) its time is over. The run may be parked meanwhile."""
        await self.live()
        self.runtime.stirred()
        seen = await self.waits.wait(wait)
        await self.check()
        self.progressed = True
        return seen

    def rest(self) -> None:
        """It only waits, though it is kept in memory: others have its slot meanwhile."""
        self.runtime.slots.rest(self.token)

    @property
    def rests(self) -> bool:
        """Whether others have its slot."""
        return self.runtime.slots.rests(self.token)

    async def take_slot(self) -> None:
        """Returns when it has a slot again, for a step that is to begin."""
        await self.runtime.slots.take(self.token)
        await self.check()

    @property
    def comeback(self) -> float:
        """Seconds that it took to replay what lies behind it; 0 when that was little, or the worker stops."""
        long = self._replayed >= _LONG_REPLAY and self.runtime.pump.claiming
        return self._replay_took if long else 0.0

    def make_room(self) -> bool:
        """Gets out of the way of others while it stays; tells whether it could. Sync code has to keep its thread, and
        with it its slot: that is in nobody's way as long as others are free."""
        if not self.definition.is_async:
            return self.runtime.slots.free > 0
        self.rest()
        return self.rests

    def may_come(self, at: Millis | None) -> bool:
        """Whether something may have come in time of which the claim does not know, for a wait that ends at `at`."""
        return at is None or at > self._claimed_at

    def saw(self, seen: Seen) -> None:
        """A watched wait is true."""
        self.waits.saw(seen)

    def park(self, waits: list[Wait]) -> None:
        """Puts the run away until the store finds one of these true."""
        try:
            self.tap(Point.PARKED, "")
        except asyncio.CancelledError:
            return
        self.halt()
        self.runtime.pump.settle(Settle(self.claim.ref, self.token, To.PARK, waits=waits))
