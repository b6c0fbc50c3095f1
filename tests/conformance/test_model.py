"""Random interleavings of everything that clients and workers do, compared with the plain model after each step."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from conformance.conftest import STORES
from conformance.kit import (
    BILL,
    DEFAULT,
    EVERYTHING,
    SHIP,
    URGENT,
    ManualClock,
    all_runs,
    checkpoint,
    for_run,
    for_signal,
    for_timer,
    of_group,
    of_queue,
    of_workflow,
)
from conformance.reference import Reference, Run
from perdure.errors import RunEnded, RunNotEnded
from perdure.model import Json, Kind, Limits, Outcome, RunRecord, Scope, Signal, Start, State, Wait
from perdure.stores.base import Claim, Exchange, Exchanged, Registration, Save, Settle, To, Watch

T = TypeVar("T")

LANES = [([DEFAULT, URGENT], [SHIP, BILL]), ([DEFAULT], [SHIP, BILL]), ([DEFAULT, URGENT], [SHIP])]
LEASES = [3_000, 60_000, 600_000]
NAMES = ["approve", "reject"]
SCOPES = [EVERYTHING, of_queue(), of_workflow(), of_group("g"), of_group("h")]
DELAYS = st.sampled_from([0, 1, 500, 3_000, 60_000])


class Incarnation:
    """What the machine remembers of a worker: its serial, and its last exchange for repeating it."""

    def __init__(self, number: int, name: str, lease: int) -> None:
        self.id, self.name, self.lease = number, name, lease
        self.serial = 0
        self.last: Exchange | None = None
        self.reply: Exchanged | None = None

    def __repr__(self) -> str:
        return self.name


class StoreMachine(RuleBasedStateMachine):
    backend: str

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.store = STORES[self.backend].open(Path(self.directory.name), self.clock)
        self.run(self.store.open())
        self.reference = Reference(self.clock)
        self.workers: list[Incarnation] = []
        self.gone: list[Incarnation] = []
        self.claims: list[tuple[Incarnation, Claim]] = []
        self.bodies = 0
        self.names = 0

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()
        self.directory.cleanup()

    # --- what is drawn

    def body(self) -> Json:
        """A text that is used once, so that no two can be taken for each other."""
        self.bodies += 1
        return f'"body {self.bodies}"'

    def some_run(self, data: st.DataObject) -> Run:
        return self.reference.runs[data.draw(st.sampled_from(list(self.reference.runs)))]

    def some_worker(self, data: st.DataObject) -> Incarnation:
        return data.draw(st.sampled_from(self.workers))

    def some_start(self, data: st.DataObject, parent: str | None = None) -> Start:
        return Start(
            id=data.draw(st.sampled_from([f"r{len(self.reference.runs)}"] * 4 + list(self.reference.runs)[-2:])),
            workflow=data.draw(st.sampled_from([SHIP, BILL])),
            queue=data.draw(st.sampled_from([DEFAULT, DEFAULT, URGENT])),
            input=self.body(),
            priority=data.draw(st.integers(-1, 1)),
            delay=data.draw(st.sampled_from([None, None, None, 0, 1, 500, 5_000])),
            timeout=data.draw(st.sampled_from([None, None, None, 3_000, 30_000])),
            max_crashes=data.draw(st.sampled_from([1, 2, 5])),
            parent=parent,
            group=data.draw(st.sampled_from(["", "", "g", "h"])),
            group_limit=data.draw(st.sampled_from([1, 1, 2])),
            group_keep=data.draw(st.booleans()),
            session=data.draw(st.sampled_from(["", "", "", "s", "t"])),
        )

    def some_waits(self, data: st.DataObject) -> list[Wait]:
        at = st.none() | DELAYS.map(lambda delay: self.clock.now() + delay)
        waits = [for_signal(name, at=data.draw(at)) for name in sorted(data.draw(st.sets(st.sampled_from(NAMES))))]
        waits += [
            for_run(target, at=data.draw(at))
            for target in data.draw(st.sets(st.sampled_from(list(self.reference.runs))))
        ]
        if not waits or data.draw(st.booleans()):
            waits.append(for_timer(self.clock.now() + data.draw(DELAYS)))
        return waits

    def some_save(self, data: st.DataObject, claim: Claim) -> Save:
        run = self.reference.runs[claim.id]
        taken: int | None = None
        child: Start | None = None
        if run.signals and data.draw(st.booleans()):
            taken = run.signals[0].position
        elif data.draw(st.integers(0, 3)) == 0:
            child = self.some_start(data, parent=run.id)
        kept = checkpoint(
            data.draw(st.sampled_from("abcd")),
            self.body(),
            kind=Kind.SIGNAL if taken else Kind.CHILD if child else Kind.STEP,
            outcome=data.draw(st.sampled_from(Outcome)),
        )
        return Save(ref=claim.ref, token=claim.token, checkpoint=kept, consumes=taken, starts=child)

    def some_settle(self, data: st.DataObject, claim: Claim) -> Settle:
        to = data.draw(st.sampled_from([*To, To.PARK, To.PARK]))
        return Settle(
            ref=claim.ref,
            token=claim.token,
            to=to,
            body=self.body(),
            delay=data.draw(DELAYS) if to == To.RETRY else 0,
            waits=self.some_waits(data) if to == To.PARK else [],
        )

    def owns(self, worker: Incarnation, claim: Claim) -> bool:
        run = self.reference.runs[claim.id]
        return (run.owner, run.token) == (worker.id, claim.token)

    def next_exchange(self, worker: Incarnation, slots: int) -> Exchange:
        worker.serial += 1
        return Exchange(worker=worker.id, serial=worker.serial, slots=slots)

    def say(self, worker: Incarnation, exchange: Exchange) -> None:
        worker.last = exchange
        reply = self.run(self.store.exchange(exchange))
        self.reference.exchange(exchange, reply)
        worker.reply = reply
        self.claims += [(worker, claim) for claim in reply.claims]
        if reply.gone:
            self.look()

    def look(self) -> None:
        """Takes up what is due, where it is open whether the exchange before this one did."""
        said = self.next_exchange(self.observer, 0)
        self.reference.exchange(said, self.run(self.store.exchange(said)))

    def register(self, lanes: tuple[list[str], list[str]], lease: int, sessions: int = 2) -> Incarnation:
        self.names += 1
        registration = Registration(
            name=f"worker-{self.names}",
            host="localhost",
            pid=1,
            queues=lanes[0],
            workflows=lanes[1],
            concurrency=4,
            lease=lease,
            sessions=sessions,
            session_idle=3_000,
        )
        number = self.run(self.store.register(registration))
        self.reference.register(number, registration)
        return Incarnation(number, registration.name, lease)

    # --- clients

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.observer = self.register(LANES[0], 10**12)
        self.start_worker(LANES[0], LEASES[2])
        self.start_worker(LANES[0], LEASES[1])
        self.enqueue(data, 4)
        self.claim(data, 4)
        if data.draw(st.booleans()):
            self.live_or_die(data, "dies")
            self.claim(data, 4)

    @rule(data=st.data(), number=st.integers(1, 4))
    def enqueue(self, data: st.DataObject, number: int) -> None:
        starts = [self.some_start(data) for _ in range(number)]
        theirs = self.run(self.store.enqueue(starts))
        for answer, expected in zip(theirs, self.reference.enqueue(starts), strict=True):
            assert (answer.id, answer.existed) == (expected.id, expected.existed)
            assert answer.same == expected.same or not answer.existed

    @precondition(lambda self: self.reference.runs)
    @rule(data=st.data(), name=st.sampled_from(NAMES), number=st.integers(0, 9))
    def signal(self, data: st.DataObject, name: str, number: int) -> None:
        run = self.some_run(data)
        sent = Signal(id=f"{run.id}:{name}:{number}", run_id=run.id, name=name, body=f'"{number}"')
        if run.shown.state.final and sent.id not in run.delivered:
            with pytest.raises(RunEnded):
                self.run(self.store.signal(sent))
        else:
            self.run(self.store.signal(sent))
            self.reference.signal(sent)

    @precondition(lambda self: self.reference.runs)
    @rule(data=st.data(), cancels=st.booleans())
    def operate(self, data: st.DataObject, cancels: bool) -> None:
        """Somebody cancels a run, or retries it."""
        run = self.some_run(data)
        if cancels and not run.shown.state.final:
            assert self.run(self.store.cancel(run.id, "x")) == self.reference.cancel(run.id, "x")
        if cancels:
            return
        key = data.draw(st.none() | st.sampled_from(sorted(run.checkpoints))) if run.checkpoints else None
        if not run.shown.state.final:
            with pytest.raises(RunNotEnded):
                self.run(self.store.retry(run.id, from_key=key))
        elif run.shown.state != State.SUCCEEDED or key is not None:
            self.run(self.store.retry(run.id, from_key=key))
            self.reference.retry(run.id, key)

    @rule(scope=st.sampled_from(SCOPES), running=st.sampled_from([None, 1, 2, 4]))
    def set_limits(self, scope: Scope, running: int | None) -> None:
        held = self.run(self.store.set_limits(scope, Limits(running), "ada"))
        self.reference.turns.set(scope, Limits(running), held.paused)

    @rule(scope=st.sampled_from(SCOPES), paused=st.sampled_from([True, False, False]))
    def pause(self, scope: Scope, paused: bool) -> None:
        held = self.run(self.store.pause(scope, "ada", paused=paused))
        self.reference.turns.set(scope, held.limits, paused)

    # --- workers

    @precondition(lambda self: len(self.workers) < 3)
    @rule(lanes=st.sampled_from(LANES), lease=st.sampled_from(LEASES), sessions=st.integers(0, 2))
    def start_worker(self, lanes: tuple[list[str], list[str]], lease: int, sessions: int = 2) -> None:
        self.workers.append(self.register(lanes, lease, sessions))

    @rule(data=st.data(), slots=st.sampled_from([4, 1, 2, 3]))
    def claim(self, data: st.DataObject, slots: int) -> None:
        worker = self.some_worker(data)
        self.say(worker, self.next_exchange(worker, slots))

    def work(self, data: st.DataObject, slots: int) -> None:
        """One wake of a worker that owns runs: saves, settles, watches and claims."""
        busy = [worker for worker in self.workers if self.reference.owned(worker.id)]
        worker = data.draw(st.sampled_from(busy))
        said = self.next_exchange(worker, slots)
        for claim in [claim for owner, claim in self.claims if owner is worker and self.owns(worker, claim)]:
            saves = [self.some_save(data, claim) for _ in range(data.draw(st.sampled_from([0, 0, 1, 2])))]
            # Two saves of one batch do not take the same signal.
            said.saves += [save for n, save in enumerate(saves) if n == 0 or save.consumes is None]
            if data.draw(st.booleans()):
                said.settles.append(self.some_settle(data, claim))
            else:
                wait = for_signal(data.draw(st.sampled_from(NAMES)))
                said.watches.append(Watch(ref=claim.ref, token=claim.token, wait=wait))
        self.say(worker, said)

    @precondition(lambda self: any(run.owner for run in self.reference.runs.values()))
    @rule(data=st.data(), slots=st.integers(0, 3))
    def carry_on(self, data: st.DataObject, slots: int) -> None:
        """Twice the same rule: what goes on most of the time should go on most of the time here."""
        self.work(data, slots)

    @precondition(lambda self: any(run.owner for run in self.reference.runs.values()))
    @rule(data=st.data(), slots=st.integers(0, 3))
    def carry_on_too(self, data: st.DataObject, slots: int) -> None:
        self.work(data, slots)

    @precondition(lambda self: any(worker.last for worker in self.workers))
    @rule(data=st.data())
    def exchange_again(self, data: st.DataObject) -> None:
        """The reply was lost, and the worker repeats what it said: it gets the same, and nothing happens twice."""
        worker = data.draw(st.sampled_from([worker for worker in self.workers if worker.last]))
        assert worker.last is not None and worker.reply is not None
        said = replace(worker.last, repeated=True)
        reply = self.run(self.store.exchange(said))
        self.claims += [(worker, claim) for claim in self.reference.repeat(said, reply, worker.reply)]
        worker.reply = reply
        self.look()

    @precondition(lambda self: any(not self.owns(*claim) for claim in self.claims))
    @rule(data=st.data(), saves=st.booleans())
    def write_late(self, data: st.DataObject, saves: bool) -> None:
        """A claim that owns nothing any more writes nothing, whether its worker lives or not."""
        stale = [(worker, claim) for worker, claim in self.claims if not self.owns(worker, claim)]
        worker, claim = data.draw(st.sampled_from(stale[-10:]))
        said = self.next_exchange(worker, 1)
        if saves:
            said.saves.append(self.some_save(data, claim))
        else:
            said.settles.append(self.some_settle(data, claim))
        self.say(worker, said)

    @rule(ms=st.sampled_from([1, 500, 1_000, 5_000, 50_000]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @rule(data=st.data(), how=st.sampled_from(["renews", "renews", "is silent", "dies", "retires"]))
    def live_or_die(self, data: st.DataObject, how: str) -> None:
        """A worker renews, lets its lease end, is seen to die by its supervisor, or hands back in good order."""
        worker = data.draw(st.sampled_from(self.workers + self.gone[-1:]))
        known = self.reference.workers.get(worker.id)
        if how == "renews":
            keeper = self.store.keeper(worker.id, worker.lease)
            assert keeper.renew() == (known is not None)
            keeper.close()
            if known:
                known.lease_until = self.clock.now() + worker.lease
        elif how == "is silent":
            if known:
                self.clock.advance(ms=max(0, known.lease_until - self.clock.now()))
            taken = self.run(self.store.reclaim())
            assert taken == self.reference.take_back(self.reference.dead(), self.shown())
        elif how == "dies":
            taken = self.run(self.store.bury(worker.name))
            assert taken == self.reference.take_back([worker.id] if known else [], self.shown())
        else:
            self.run(self.store.retire(worker.id))
            if known:
                self.reference.retire(worker.id)
        self.part()

    def part(self) -> None:
        """Sets those that are gone apart, and sees to it that somebody is left."""
        self.gone += [worker for worker in self.workers if worker.id not in self.reference.workers]
        self.workers = [worker for worker in self.workers if worker.id in self.reference.workers]
        if not self.workers:
            self.start_worker(LANES[0], LEASES[2])

    # --- what holds after each step

    def shown(self) -> dict[str, RunRecord]:
        return {run.id: run for run in self.run(all_runs(self.store))}

    @invariant()
    def the_store_shows_what_the_model_says(self) -> None:
        shown = self.shown()
        self.reference.check(list(shown.values()))
        self.check_owners()
        for run in self.reference.runs.values():
            signals = self.run(self.store.signals(run.id))
            assert signals == run.signals
            self.reference.check_history(run, self.run(self.store.history(run.id)))
            if shown[run.id].state == State.WAITING:
                waits = shown[run.id].waits
                names = {arrived.name for arrived in signals}
                assert waits, f"{run.id} waits for nothing"
                assert not any(wait.target in names for wait in waits), f"{run.id} waits for what is there"

    @invariant()
    def what_is_used_is_what_runs_use(self) -> None:
        """No slot and no share of a limit is lost, or given twice."""
        for record in self.run(self.store.limits()):
            assert record.running == self.reference.turns.used(record.scope)
        for key in self.reference.turns.asked:
            begun = [run for run in self.reference.turns.holders(key) if run.shown.state == State.QUEUED]
            line = self.reference.turns.members(key, 2)
            unbegun = [run.rank for run in begun if run.shown.started_at is None]
            assert not unbegun or not line or max(unbegun) < min(run.rank for run in line)

    def check_owners(self) -> None:
        """Each running run has one owner, and nothing else has any."""
        owners = {worker.name: worker.running for worker in self.run(self.store.workers())}
        assert owners == {
            worker.name: len(self.reference.owned(number))
            for number, worker in self.reference.workers.items()
            if worker.lease_until > self.clock.now()
        }


@pytest.mark.parametrize("backend", STORES)
def test_a_store_does_what_the_model_does(backend: str) -> None:
    machine = type("Machine", (StoreMachine,), {"backend": backend})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=70,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )
