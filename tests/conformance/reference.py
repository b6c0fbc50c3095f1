"""The contract as a plain model in memory, without any regard to speed: what a store is compared with.

The model decides everything that the contract decides. Where it leaves a choice to the store (a random wait, a text,
an order across queues), the model checks that the choice is allowed, and takes it over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from conformance.kit import ManualClock
from conformance.runs import Run, Runs
from conformance.slots import Schedules
from perdure.blame import crash_backoff
from perdure.causes import DEADLINE_PASSED, PARENT_DEADLINE_PASSED, deadline_exceeded, poisoned
from perdure.model import Checkpoint, Ended, Fire, Millis, Outcome, Overlap, RunRecord, State, Wait, WaitFor
from perdure.stores.base import Registration
from perdure.stores.exchange import CLAIM_LIMIT, Cancelling, Claim, Exchange, Exchanged, Existed, Save, Settle, To

ENDS = {To.SUCCEEDED: State.SUCCEEDED, To.FAILED: State.FAILED, To.CANCELLED: State.CANCELLED}


@dataclass
class Incarnation:
    name: str
    lanes: set[tuple[str, str]]
    lease_until: Millis
    sessions: int
    session_idle: Millis


class Reference(Runs):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.workers: dict[int, Incarnation] = {}
        self.names: dict[int, str] = {}
        self.schedules = Schedules()

    # --- workers

    def register(self, number: int, worker: Registration) -> None:
        assert number not in self.workers
        lanes = {(queue, workflow) for queue in worker.queues for workflow in worker.workflows}
        self.workers[number] = Incarnation(
            worker.name, lanes, self.clock.now() + worker.lease, worker.sessions, worker.session_idle
        )
        self.names[number] = worker.name

    def owned(self, worker: int) -> list[Run]:
        return [run for run in self.runs.values() if run.owner == worker]

    def dead(self) -> list[int]:
        return [number for number, worker in self.workers.items() if worker.lease_until <= self.clock.now()]

    def take_back(self, workers: Iterable[int], chosen: dict[str, RunRecord]) -> int:
        """Reclaims what these own; `chosen` shows how long the store keeps each of the runs away."""
        taken: list[Run] = []
        for number in list(workers):
            del self.workers[number]
            runs = self.owned(number)
            taken += runs
            most = max((run.shown.crashes for run in runs), default=0)
            blamed = [run for run in runs if run.shown.crashes == most]
            for run in runs:
                self._crash(run, len(blamed) if run in blamed else 0, chosen[run.id])
            self.turns.leave(number)
        # Which of a group are over its limit depends on the order in which their workers are found.
        self._end_held(
            [run for run in taken if run.slot is None or self.turns.paused(run) or chosen[run.id].state.final]
        )
        return len(taken)

    def _end_held(self, runs: list[Run]) -> None:
        """Ends those of runs that came back while they are being cancelled, where nobody may claim them."""
        back = [run for run in runs if run.shown.state == State.QUEUED and run.shown.cancelling is not None]
        for run in [each for each in back if self.turns.held(each)]:
            if run.overdue:
                self._end(run, State.FAILED, deadline_exceeded())
            else:
                self._end(run, State.CANCELLED, None)

    def _crash(self, run: Run, blamed: int, chosen: RunRecord) -> None:
        """`blamed` is how many runs share the blame with this one; 0 when it has none."""
        run.owner = run.token = run.shown.worker = None
        run.shown.crashes += blamed > 0
        if blamed and run.shown.crashes >= run.start.max_crashes * (1 if blamed == 1 else 4):
            assert 0 <= chosen.attempt - run.shown.attempt <= 1
            run.shown.attempt = chosen.attempt
            self._end(run, State.FAILED, poisoned(run.shown.crashes))
            return
        run.shown.cut_off = True
        run.shown.attempt += 1
        if blamed and chosen.wake_at is not None:
            now = self.clock.now()
            assert now <= chosen.wake_at <= now + crash_backoff(run.shown.crashes)
            run.shown.body = chosen.body
            self._go(run, State.SCHEDULED, chosen.wake_at)
        else:
            self._queue(run)

    def retire(self, worker: int) -> None:
        del self.workers[worker]
        owned = self.owned(worker)
        for run in owned:
            self._release(run)
            self._queue(run)
        self.turns.leave(worker)
        self._end_held(owned)

    def exchange(self, said: Exchange, reply: Exchanged, shown: Callable[[], dict[str, RunRecord]]) -> None:
        """Does what was said, and checks the reply against it. `shown` shows what the store has put off."""
        assert reply.now == self.clock.now()
        if said.worker not in self.workers:
            assert reply.gone and not (reply.claims or reply.seen or reply.cancelled)
            return
        idle = self.turns.any_idle(reply.now)
        repeated = {settle.token for settle in said.settles if self._settled(settle.token)}
        refused, existed = self._save(said.saves)
        assert reply.existed == existed
        refused |= self._settle(said.settles)
        refused |= {watch.token for watch in said.watches if not self._owner(watch.token)}
        self._fire(said.fires)
        self._tick(idle)
        self._claim(said, reply.claims, shown, after=said.after)
        # It gets as many as there are slots, or all that nothing keeps from it.
        assert len(reply.claims) <= min(said.slots, CLAIM_LIMIT)
        assert len(reply.claims) == min(said.slots, CLAIM_LIMIT) or not self.ready(said.worker)
        assert not reply.gone
        assert refused <= set(reply.refused) <= refused | repeated
        owned = {run.token: run for run in self.owned(said.worker)}
        assert dict(reply.cancelled) == {
            token: Cancelling(run.shown.cancelling, deadline=run.overdue)
            for token, run in owned.items()
            if run.shown.cancelling is not None
        }
        for watch in said.watches:
            seen = [each for each in reply.seen if (each.token, each.key) == (watch.token, watch.wait.key)]
            true = watch.token not in refused and self._true(owned[watch.token], watch.wait)
            assert len(seen) == true
        assert sorted(reply.due, key=lambda each: each.schedule.name) == self.schedules.due(reply.now)
        assert reply.more == bool(self.ready(said.worker) or self._late(said.worker))
        assert reply.next_at in self._next_times(said.worker, more=reply.more)

    def repeat(
        self, said: Exchange, reply: Exchanged, first: Exchanged, shown: Callable[[], dict[str, RunRecord]]
    ) -> list[Claim]:
        """Checks the reply to an exchange that was done before: the same claims, and at most what fills its slots.

        Returns the claims that are new."""
        if said.worker not in self.workers:
            assert reply.gone and not (reply.claims or reply.seen or reply.cancelled)
            return []
        # A settle is remembered until the next one of its run.
        forgotten = {settle.token for settle in said.settles if self._settled_since(settle.token)}
        assert not reply.gone and set(reply.refused) <= set(first.refused) | forgotten
        again = {claim.token: claim for claim in reply.claims}
        for claim in first.claims:
            same = again.pop(claim.token)
            assert (same.id, same.input, same.attempt) == (claim.id, claim.input, claim.attempt)
            assert (same.cut_off, same.checkpoints) == (claim.cut_off, claim.checkpoints)
        self._fire(said.fires)
        self._tick(self.turns.any_idle(reply.now))
        assert len(reply.claims) <= max(said.slots, len(first.claims))
        self._claim(said, list(again.values()), shown, after=None)
        return list(again.values())

    def _owner(self, token: int) -> Run | None:
        return next((run for run in self.runs.values() if run.token == token), None)

    def _settled(self, token: int) -> bool:
        return any(token in run.settled for run in self.runs.values())

    def _settled_since(self, token: int) -> bool:
        """Whether the run was settled by a later claim than this one."""
        return any(token in run.settled[:-1] for run in self.runs.values())

    def _save(self, saves: list[Save]) -> tuple[set[int], list[Existed]]:
        owned = [save for save in saves if self._owner(save.token) is not None]
        answers = iter(self.enqueue(save.starts for save in owned if save.starts is not None))
        existed: list[Existed] = []
        for save in owned:
            run = self._owner(save.token)
            assert run is not None
            answer = None if save.starts is None else next(answers)
            if answer is not None and answer.existed:
                existed.append(Existed(save.token, save.checkpoint.key, answer.id, answer.same))
            if answer is not None and not answer.same:
                continue
            run.checkpoints.pop(save.checkpoint.key, None)
            run.checkpoints[save.checkpoint.key] = save.checkpoint
            run.shown.cut_off = False
            if save.checkpoint.outcome != Outcome.OPEN:
                run.shown.crashes = 0
            if save.consumes is not None:
                for arrived in [each for each in run.signals if each.position == save.consumes]:
                    run.signals.remove(arrived)
                    run.taken[arrived.position] = arrived, save.checkpoint.key
        return {save.token for save in saves} - {save.token for save in owned}, existed

    def _settle(self, settles: list[Settle]) -> set[int]:
        refused: set[int] = set()
        parked: list[Run] = []
        owners = {settle.token: self._owner(settle.token) for settle in settles}
        # In the order of the runs, so that it is known who of a group gets a slot first.
        for settle in sorted(settles, key=lambda each: run.rank[1] if (run := owners[each.token]) else 0):
            run = self._owner(settle.token)
            if run is not None:
                self._release(run)
                run.settled.append(settle.token)
                run.parked_for = None
                self._move(run, settle)
                parked.append(run)
            elif not self._settled(settle.token):
                refused.add(settle.token)
        for run in parked:
            if any(self._true(run, wait) for wait in run.shown.waits):
                self._queue(run)
        self._end_held(parked)
        if any(run.start.session for run in parked):
            self.turns.rest(self.clock.now())
        return refused

    def _move(self, run: Run, settle: Settle) -> None:
        now = self.clock.now()
        if settle.to in ENDS:
            self._end(run, ENDS[settle.to], settle.body)
            return
        if run.shown.cancelling or settle.to == To.RELEASE:
            self._queue(run)
            return
        run.shown.cut_off = False
        if settle.to == To.RETRY:
            run.shown.attempt += 1
            self._clear_errors(run)
            if settle.delay:
                run.shown.body = settle.body
                self._go(run, State.SCHEDULED, now + settle.delay)
            else:
                self._queue(run)
        elif settle.to == To.CONTINUE:
            assert settle.body is not None
            run.checkpoints.clear()
            kept = {arrived.position for arrived in run.signals} | set(run.taken)
            run.delivered = {id: position for id, position in run.delivered.items() if position in kept}
            run.taken.clear()
            run.shown.input, run.shown.attempt, run.shown.crashes = settle.body, 1, 0
            self._queue(run)
        else:
            times = [wait.at for wait in settle.waits if wait.at is not None]
            self._go(run, State.WAITING, min(times, default=None), settle.waits)
            run.parked_for = [wait.target for wait in settle.waits if wait.what == WaitFor.RUN]

    def _fire(self, fires: Sequence[Fire]) -> None:
        """A slot at which its schedule does not stand any more makes nothing: each makes one run."""
        for fire in fires:
            kept = self.schedules.stands(fire)
            if kept is None:
                continue
            made: str | None = None
            for start in fire.starts:
                behind = None
                earlier = [run.id for run in self.live_of(fire.name) if run.id != start.id]
                if earlier and fire.overlap == Overlap.SKIP:
                    continue
                if fire.overlap == Overlap.CANCEL:
                    for run_id in earlier:
                        self.cancel(run_id, f"the next run of schedule {fire.name} began")
                elif earlier and fire.overlap == Overlap.QUEUE:
                    behind = Wait(f"schedule:{fire.name}", WaitFor.SCHEDULE, fire.name)
                made = self._start(start, behind).id
                self.runs[made].schedule = self.runs[made].schedule or fire.name
            self.schedules.move_on(fire, made)

    def _true(self, run: Run, wait: Wait) -> bool:
        if wait.at is not None and wait.at <= self.clock.now():
            return True
        if wait.what == WaitFor.SIGNAL:
            return any(arrived.name == wait.target for arrived in run.signals)
        if wait.what != WaitFor.RUN:
            return False
        return wait.target not in self.runs or self.runs[wait.target].shown.state.final

    def _tick(self, idle: bool) -> None:
        """`idle`: whether there were sessions to be given up when the exchange began."""
        now = self.clock.now()
        for run in self.runs.values():
            if run.shown.wake_at is not None and run.shown.wake_at <= now:
                self._queue(run)
        late = [run for run in self.runs.values() if run.shown.deadline is not None and run.shown.deadline <= now]
        late = [run for run in late if not run.shown.state.final and not run.shown.cancelling]
        for run in late:
            if run.shown.state == State.RUNNING:
                run.shown.cancelling, run.overdue = DEADLINE_PASSED, True
            else:
                self._end(run, State.FAILED, deadline_exceeded())
        for run in late:
            for each in self._family(run.id):
                self._stop(each, PARENT_DEADLINE_PASSED)
        if idle:
            self.turns.rest(now)
            self.turns.let_go(now)

    def _next_times(self, worker: int, *, more: bool) -> set[Millis | None]:
        """When the worker may have to look again. While more is ready, a store need not know what rates say besides."""
        now = self.clock.now()
        live = [run.shown for run in self.runs.values() if not run.shown.state.final]
        times = [run.wake_at for run in live] + [run.deadline for run in live if not run.cancelling]
        times += self.schedules.times(now)
        sessions = self.workers[worker].sessions
        if self._wanted(worker) and self.turns.rooms(worker, sessions) <= 0:
            times += self.turns.keeps_until(worker)
        first = min((time for time in times if time is not None), default=None)
        opens = {self.turns.lane_opens_at(run, now) for run in self._free(worker)} - {now}
        if not more:
            return {min([*opens, *([] if first is None else [first])], default=None)}
        return {first, *(at if first is None else min(at, first) for at in opens)}

    def _wanted(self, worker: int) -> bool:
        """Whether a session that nobody owns has a run for the worker, which takes sessions."""
        queued = [run for run in self._queued(worker) if run.slot != 2 and not self.turns.over(run)]
        mine = [run for run in queued if not self.turns.paused(run)]
        owners = [session.owner for run in mine if (session := self.turns.session(run)) is not None]
        return self.workers[worker].sessions > 0 and None in owners

    def _queued(self, worker: int) -> list[Run]:
        lanes = self.workers[worker].lanes
        queued = [run for run in self.runs.values() if run.shown.state == State.QUEUED]
        return [run for run in queued if (run.shown.queue, run.shown.workflow) in lanes]

    def _free(self, worker: int) -> list[Run]:
        """What nothing but a rate keeps from the worker, in order."""
        may = [run for run in self._queued(worker) if self.turns.claimable(run, worker, self.workers[worker].sessions)]
        return sorted(may, key=lambda run: run.rank)

    def _open(self, worker: int) -> list[Run]:
        """What no rate of its lane keeps besides."""
        now = self.clock.now()
        return [run for run in self._free(worker) if self.turns.lane_opens_at(run, now) <= now]

    def _late(self, worker: int) -> list[Run]:
        """What only the rate of its group keeps from the worker: a store puts it off when it comes to it."""
        now = self.clock.now()
        return [run for run in self._open(worker) if self.turns.group_opens_at(run, now) > now]

    def ready(self, worker: int) -> list[Run]:
        """What the worker may claim, in order."""
        now = self.clock.now()
        return [run for run in self._open(worker) if self.turns.group_opens_at(run, now) <= now]

    def _claim(
        self, said: Exchange, claims: list[Claim], shown: Callable[[], dict[str, RunRecord]], *, after: str | None
    ) -> None:
        """Takes claims over; by turns of queues, beginning behind `after`, unless that is None."""
        assert len({claim.token for claim in claims}) == len(claims)
        for claim in claims:
            run = self.runs[claim.id]
            ready = self.ready(said.worker)
            assert run in ready, f"{claim.id} was claimed, which something keeps from it"
            before = [each.id for each in ready if _before(each, run)]
            assert not before, f"{claim.id} was claimed before {before}"
            if after is not None:
                after = self._turn(ready, after)
                assert claim.queue == after, f"{claim.id} was claimed when it was the turn of {after}"
            assert claim.token >> 8 == (said.worker << 32) + said.serial
            self._check(claim, run)
            run.owner, run.token = said.worker, claim.token
            run.shown.state, run.shown.worker = State.RUNNING, self.workers[said.worker].name
            run.shown.started_at = run.shown.started_at or self.clock.now()
            run.parked_for = None
            self.turns.own(run, said.worker, self.workers[said.worker].session_idle, self.clock.now())
        if said.slots and self.turns.rates.any():
            self._put_off(said.worker, shown())

    def _put_off(self, worker: int, shown: dict[str, RunRecord]) -> None:
        """Takes over which runs were put off for the rates of their groups, and behind how many others of these."""
        for run in self._queued(worker):
            theirs = shown[run.id]
            if theirs.state == State.SCHEDULED:
                assert theirs.wake_at in self.turns.put_off_times(run, self.clock.now())
                run.put_off, run.shown.body = True, theirs.body
                run.shown.state, run.shown.wake_at = State.SCHEDULED, theirs.wake_at
                self.turns.moved(run)

    def _turn(self, ready: list[Run], after: str) -> str:
        """The next queue that has a ready run."""
        queues = sorted({run.shown.queue for run in ready})
        return next((queue for queue in queues if queue > after), queues[0])

    def _check(self, claim: Claim, run: Run) -> None:
        shown = run.shown
        assert (claim.workflow, claim.input, claim.attempt) == (shown.workflow, shown.input, shown.attempt)
        assert (claim.crashes, claim.created_at, claim.deadline) == (shown.crashes, shown.created_at, shown.deadline)
        why = None if shown.cancelling is None else Cancelling(shown.cancelling, deadline=run.overdue)
        assert (claim.parent, claim.cancelling) == (shown.parent, why)
        assert claim.cut_off == shown.cut_off
        assert claim.signals == run.signals
        self.check_history(run, claim.checkpoints)
        if run.parked_for is not None:
            targets = [self.runs[target].shown for target in run.parked_for]
            for end in claim.ended:
                self._take_over(end.id, end.state, end.body)
            outcomes = {each.id: Ended(each.id, each.state, each.body) for each in targets if each.state.final}
            assert {end.id: end for end in claim.ended} == outcomes
            assert claim.missing == []

    # --- what must hold at any time

    def check(self, shown: list[RunRecord]) -> None:
        """Compares all runs with what the store shows, oldest first."""
        assert [run.id for run in shown] == list(self.runs)
        assert [run.position for run in shown] == sorted({run.position for run in shown})
        for theirs in shown:
            ours = self.runs[theirs.id].shown
            self._take_over(theirs.id, theirs.state, theirs.body)
            waits = [self._wait(wait) for wait in ours.waits]
            owner = self.workers.get(self.runs[theirs.id].owner or 0)
            lease = None if owner is None else owner.lease_until
            assert _comparable(theirs) == _comparable(replace(ours, waits=waits, lease_until=lease))
            reason = self.turns.reason(self.runs[theirs.id], self.names, self.clock.now())
            assert (theirs.held is None) == (reason is None), (theirs.held, reason)
            assert (theirs.held or "").startswith(reason or ""), (theirs.held, reason)

    def _wait(self, wait: Wait) -> Wait:
        """A wait as it is shown: one for the runs of a schedule with the first one of these."""
        return replace(wait, target=self.live_of(wait.target)[0].id) if wait.what == WaitFor.SCHEDULE else wait

    def check_history(self, run: Run, history: list[Checkpoint]) -> None:
        assert [(kept.key, kept.outcome, kept.body) for kept in history] == [
            (kept.key, kept.outcome, kept.body) for kept in run.checkpoints.values()
        ]

    def _take_over(self, run_id: str, state: State, body: str | None) -> None:
        """The words for which a run was cancelled, when it was the store that did it, are the store's."""
        ours = self.runs[run_id].shown
        if state == State.CANCELLED and ours.body is None:
            ours.body = body


def _before(one: Run, other: Run) -> bool:
    """Whether one must be claimed before the other, both being ready. Groups take turns as they will."""
    if one.shown.queue != other.shown.queue:
        return False
    if one.shown.priority != other.shown.priority:
        return one.shown.priority < other.shown.priority
    return one.start.group == other.start.group == "" and one.shown.position < other.shown.position


def _comparable(run: RunRecord) -> RunRecord:
    """The run without what the contract leaves to the store: positions, texts of reasons and causes, bodies of live
    runs."""
    return replace(
        run,
        position=0,
        cause=None,
        held=None,
        cancelling=None if run.state.final else run.cancelling,
        waits=sorted(run.waits, key=lambda wait: wait.key),
        body=run.body if run.state.final or run.state == State.SCHEDULED else None,
    )
