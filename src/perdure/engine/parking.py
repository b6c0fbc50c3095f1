"""What a run waits for, and when it is put away for that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.engine.tasks import waits_for_others
from perdure.errors import StepCancelled
from perdure.model import Wait, WaitFor
from perdure.stores.exchange import Seen, Watch

if TYPE_CHECKING:
    from perdure.engine.execution import Execution

_QUIET_TURNS = 3
"""Turns of the event loop in a row in which all tasks of a run must be found waiting: callbacks between two tasks (of
`gather`, of a group) take a turn each in which no task shows that it goes on."""

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.5
"""Seconds between two looks at a run whose tasks are at something that the engine does not see the end of."""


class Waits:
    """The waits of one execution. When nothing else of it is in flight, the run is parked: off this worker altogether,
    until the store finds one of the conditions true. Beside steps in flight they are watched from here."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._loop = execution.runtime.loop
        self._pending: dict[str, tuple[Wait, asyncio.Future[Seen | None]]] = {}
        self._endless: dict[str, asyncio.Future[None]] = {}
        self._unwatched: dict[str, Wait] = {}
        self._late: set[str] = set()
        """The keys of those whose time is over, and of which the store is asked whether they came true before."""
        self._look: asyncio.TimerHandle | asyncio.Handle | None = None
        self.staying = False
        """Whether nothing of the run goes on, though it is not put away yet."""

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def keys(self) -> list[str]:
        """The keys of the waits that are not over; empty when one of them is about to go on."""
        return [] if any(future.done() for _, future in self._pending.values()) else list(self._pending)

    async def wait(self, wait: Wait) -> Seen | None:
        """Waits until the condition is true, or (None) its time is over."""
        future: asyncio.Future[Seen | None] = self._loop.create_future()
        self._pending[wait.key] = (wait, future)
        alarm = None
        if wait.at is not None:
            alarm = self._execution.runtime.clock.call_at(wait.at, lambda: self._ring(wait, future))
        if wait.what is not WaitFor.TIMER:
            self._unwatched[wait.key] = wait
        self.consider_parking()
        try:
            return await future
        except asyncio.CancelledError:
            seen = future.result() if future.done() and not future.cancelled() else None
            if seen is not None and seen.signal is not None:
                self._execution.inbox.release(seen.signal)
            raise
        finally:
            del self._pending[wait.key]
            self._unwatched.pop(wait.key, None)
            self._late.discard(wait.key)
            self._execution.runtime.pump.unwatch(self._execution.token, wait.key)
            if alarm is not None:
                alarm.cancel()
            self.consider_parking()

    async def until_cancelled(self, step: str) -> None:
        """Waits until the code cancels the step of that key, as it did before. `StepCancelled` when it will not, since
        all of it waits."""
        future = self._endless[step] = self._loop.create_future()
        self.consider_parking()
        try:
            await future
        finally:
            del self._endless[step]
            self.consider_parking()

    def saw(self, seen: Seen) -> None:
        """A watched wait is true."""
        entry = self._pending.get(seen.key)
        if entry is None or entry[1].done():
            return
        if seen.signal is not None and not self._execution.inbox.accept(seen.signal):
            return
        entry[1].set_result(seen)

    def end(self) -> None:
        """Asks no more whether they are true."""
        self._stop_looking()
        for key in self._pending:
            self._execution.runtime.pump.unwatch(self._execution.token, key)

    def abandon(self, prefix: str, but_within: tuple[str, ...]) -> None:
        """Ends the waits whose keys begin like that, and not like one of the others: nobody goes on with them."""
        for key, (_, future) in self._pending.items():
            if key.startswith(prefix) and not key.startswith(but_within):
                future.cancel()

    # --- parking

    def consider_parking(self) -> None:
        """Something of the run has begun or ended: looks anew whether all of it waits."""
        self._stop_looking()
        if self._may_park():
            self._look = self._loop.call_soon(self._look_again, _QUIET_TURNS, _FIRST_PAUSE)
        else:
            self._watch_all()

    def _may_park(self) -> bool:
        execution = self._execution
        return bool(self._pending or self._endless) and not (self._late or execution.active or execution.ending)

    def _stop_looking(self) -> None:
        self.staying = False
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _look_again(self, turns: int, pause: float, stayed: bool = False) -> None:
        self._look = None
        if not self._may_park():
            self._watch_all()  # a step has begun since
        elif not self._all_wait():
            self._watch_all()  # it goes on beside its waits
            if pause > _FIRST_PAUSE and self._all_wait(timed=True):
                self._execution.rest()
            self._look = self._loop.call_later(pause, self._look_again, _QUIET_TURNS, min(pause * 2, _LONGEST_PAUSE))
        elif turns:
            self._look = self._loop.call_soon(self._look_again, turns - 1, pause, stayed)
        elif self._execution.cancelling is not None:
            self._watch_all()  # it cleans up, and is not put away for that
        elif not self._pending:
            self._give_up()
        elif stayed or not self._stay():
            self._execution.park([wait for wait, _ in self._pending.values()])

    def _stay(self) -> bool:
        """Has the run stay for as long as it took to come back to where it is: one that gathers many children would be
        put away, and replay all that it has behind it, for the end of each. (Who buys when the rent comes to the price
        pays at most twice what the best choice would have cost: ski rental.) Returns whether it may."""
        seconds = self._execution.comeback
        if seconds == 0 or not self._execution.make_room():
            return False
        self._watch_all()
        self.staying = True
        self._look = self._loop.call_later(seconds, self._look_again, _QUIET_TURNS, _FIRST_PAUSE, True)
        self._execution.runtime.stirred()
        return True

    def _give_up(self) -> None:
        for step, future in self._endless.items():
            if not future.done():
                future.set_exception(
                    StepCancelled(
                        f"step {step} was cancelled by the workflow's code in an earlier attempt, and now nothing"
                        " cancels it: what that depends on (time, random numbers) has to be the result of a step"
                    )
                )

    def _all_wait(self, *, timed: bool = False) -> bool:
        waits: set[asyncio.Future[Any]] = {future for _, future in self._pending.values()}
        waits.update(self._endless.values())
        tasks = self._execution.tasks
        return all(waits_for_others(task, waits, tasks, timed=timed) for task in tasks)

    def _watch_all(self) -> None:
        execution = self._execution
        if not execution.ending:
            for wait in self._unwatched.values():
                execution.runtime.pump.watch(Watch(execution.claim.ref, execution.token, wait))
            self._unwatched.clear()

    def _ring(self, wait: Wait, future: asyncio.Future[Seen | None]) -> None:
        """The time of a wait is over. Of what only the store knows it is asked once more: a wake-up may have been lost,
        and that must make things late, but not others."""
        if future.done() or self._execution.over:
            return
        if wait.what is WaitFor.TIMER:
            future.set_result(None)
            return
        execution = self._execution
        self._late.add(wait.key)
        self._unwatched.pop(wait.key, None)
        execution.runtime.pump.unwatch(execution.token, wait.key)  # so that it is asked for as a new one, at once
        execution.runtime.pump.watch(Watch(execution.claim.ref, execution.token, wait))
