"""Random interleavings of everything that clients and workers do, compared with the plain model after each step.

`PERDURE_TEST_PROGRAMS` is how many interleavings are tried on each store, other ones each time; without it they are
few, and always the same.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from conformance import uniques
from conformance.conftest import STORES
from conformance.drawing import NAMES, Drawing
from conformance.kit import (
    BILL,
    DEFAULT,
    EVERYTHING,
    SHIP,
    URGENT,
    ManualClock,
    all_runs,
    for_signal,
    of_group,
    of_queue,
    of_workflow,
)
from conformance.reference import Reference
from perdure.cron import due_fires, next_slots
from perdure.errors import KeyTaken, RunEnded, RunNotEnded, ScheduleNotFound
from perdure.model import (
    Limits,
    Missed,
    Overlap,
    Rate,
    Retention,
    RunRecord,
    Schedule,
    ScheduleRecord,
    Signal,
    State,
)
from perdure.stores.base import Registration
from perdure.stores.exchange import Claim, Exchange, Exchanged, Settle, To, Watch
from servers.memory import PREFIX, memory

MANY = int(os.environ.get("PERDURE_TEST_PROGRAMS", "0"))

T = TypeVar("T")
SEED = st.integers(0, 2**20)

LANES = [([DEFAULT, URGENT], [SHIP, BILL]), ([DEFAULT], [SHIP, BILL]), ([DEFAULT, URGENT], [SHIP])]
LEASES = [3_000, 60_000, 600_000]
SCOPES = [EVERYTHING, of_queue(), of_workflow(), of_group("g"), of_group("h")]
RATES = {
    EVERYTHING: Rate(2, 1_000, 3),
    of_queue(): Rate(1, 500, 1),
    of_workflow(): Rate(3, 5_000, 2),
    of_group("g"): Rate(1, 3_000, 1),
    of_group("h"): Rate(7, 5_000, 2),
}
OFTEN = {
    "enqueue": 3,
    "signal": 3,
    "cancel": 1,
    "retry": 1,
    "set_limits": 1,
    "squeeze": 1,
    "pause": 1,
    "put_schedule": 1,
    "change_schedule": 1,
    "fire": 2,
    "start_worker": 1,
    "claim": 3,
    "work": 7,
    "exchange_again": 2,
    "write_late": 1,
    "time_passes": 3,
    "live_or_die": 2,
}
"""How often each thing happens, beside the others."""


class Incarnation:
    """What the machine remembers of a worker: its serial, and its last exchange for repeating it."""

    def __init__(self, number: int, name: str, lease: int) -> None:
        self.id, self.name, self.lease = number, name, lease
        self.serial = 0
        self.after = ""
        self.last: Exchange | None = None
        self.reply: Exchanged | None = None

    def __repr__(self) -> str:
        return self.name


class StoreMachine(Drawing, RuleBasedStateMachine):
    backend: str

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=memory())
        self.clock = ManualClock()
        self.store = STORES[self.backend].in_one_partition.open(Path(self.directory.name), self.clock)
        self.run(self.store.open())
        self.reference = Reference(self.clock)
        self.workers: list[Incarnation] = []
        self.gone: list[Incarnation] = []
        self.claims: list[tuple[Incarnation, Claim]] = []
        self.due: list[ScheduleRecord] = []
        """Schedules that a worker was told are due, whether or not they are any more."""
        self.fine = False
        self.names = 0
        self.ran: dict[tuple[str, str], set[str]] = {}
        """Which runs of each group were running after the step before."""

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        try:
            if self.fine:
                self.end()
        finally:
            self.run(self.store.close())
            self.loop.close()
            self.directory.cleanup()

    def some_worker(self, rng: Random) -> Incarnation:
        return rng.choice(self.workers)

    def owns(self, worker: Incarnation, claim: Claim) -> bool:
        run = self.reference.runs[claim.id]
        return (run.owner, run.token) == (worker.id, claim.token)

    def next_exchange(self, worker: Incarnation, slots: int) -> Exchange:
        worker.serial += 1
        return Exchange(worker=worker.id, serial=worker.serial, slots=slots, after=worker.after)

    def say(self, worker: Incarnation, exchange: Exchange) -> None:
        worker.last = exchange
        reply = self.run(self.store.exchange(exchange))
        self.reference.exchange(exchange, reply, self.shown)
        worker.reply = reply
        self.due = (self.due + reply.due)[-6:]
        self.claims += [(worker, claim) for claim in reply.claims]
        for claim in reply.claims:
            worker.after = claim.queue
        if reply.gone:
            self.look()

    def look(self) -> None:
        """Takes up what is due, where it is open whether the exchange before this one did."""
        said = self.next_exchange(self.observer, 0)
        self.reference.exchange(said, self.run(self.store.exchange(said)), self.shown)

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

    @initialize(seed=SEED)
    def begin(self, seed: int) -> None:
        rng = Random(seed)
        self.observer = self.register(LANES[0], 10**12)
        self.workers.append(self.register(LANES[0], LEASES[2]))
        self.enqueue(rng)
        for _ in range(rng.randint(0, 2)):
            self.set_limits(rng)
        self.put_schedule(rng)

    @rule(what=st.sampled_from([what for what, weight in OFTEN.items() for _ in range(weight)]), seed=SEED)
    def step(self, what: str, seed: int) -> None:
        """Something happens, if it can. Its details come from a seed, which is the same in each replay."""
        self.fine = False
        getattr(self, what)(Random(seed))

    def enqueue(self, rng: Random) -> None:
        starts = [self.some_start(rng) for _ in range(rng.randint(1, 4))]
        theirs = self.run(self.store.enqueue(starts))
        for answer, expected in zip(theirs, self.reference.enqueue(starts), strict=True):
            assert (answer.id, answer.existed) == (expected.id, expected.existed)
            assert answer.same == expected.same or not answer.existed
            assert answer.group_limit == expected.group_limit

    def signal(self, rng: Random) -> None:
        run, name, number = self.some_run(rng), rng.choice(NAMES), rng.randint(0, 5)
        sent = Signal(id=f"{run.id}:{name}:{number}", run_id=run.id, name=name, body=f'"{number}"')
        if run.shown.state.final and sent.id not in run.delivered:
            with pytest.raises(RunEnded):
                self.run(self.store.signal(sent))
        else:
            self.run(self.store.signal(sent))
            self.reference.signal(sent)

    def cancel(self, rng: Random) -> None:
        run = self.some_run(rng)
        if not run.shown.state.final:
            assert self.run(self.store.cancel(run.id, "x")) == self.reference.cancel(run.id, "x")

    def retry(self, rng: Random) -> None:
        run = self.some_run(rng)
        key = rng.choice([None, None, *run.checkpoints])
        if not run.shown.state.final:
            with pytest.raises(RunNotEnded):
                self.run(self.store.retry(run.id, from_key=key))
        elif run.shown.state == State.SUCCEEDED and key is None:
            pass
        elif uniques.taken(self.reference.runs.values(), run):
            with pytest.raises(KeyTaken):
                self.run(self.store.retry(run.id, from_key=key))
        else:
            self.run(self.store.retry(run.id, from_key=key))
            self.reference.retry(run.id, key)

    def set_limits(self, rng: Random) -> None:
        scope = rng.choice(SCOPES)
        limits = Limits(rng.choice([None, 1, 2, 4]), rng.choice([None, RATES[scope]]))
        held = self.run(self.store.set_limits(scope, limits, "ada"))
        self.reference.turns.set(scope, limits, held.paused)

    def squeeze(self, rng: Random) -> None:
        """Lowers the limit of a group while several of its runs have begun, wherever they are."""
        turns = self.reference.turns
        begun = {key: [run for run in turns.holders(key) if run.shown.started_at] for key in turns.asked}
        if several := [key for key, runs in begun.items() if len(runs) > 1]:
            scope = of_group(rng.choice(several)[1])
            limits = Limits(1, rng.choice([None, RATES[scope]]))
            held = self.run(self.store.set_limits(scope, limits, "ada"))
            turns.set(scope, limits, held.paused)

    def pause(self, rng: Random) -> None:
        scope, paused = rng.choice(SCOPES), rng.random() < 0.3
        held = self.run(self.store.pause(scope, "ada", paused=paused))
        self.reference.turns.set(scope, held.limits, paused)

    def put_schedule(self, rng: Random) -> None:
        start = replace(self.some_start(rng), id="", unique=None, delay=None)
        schedule = Schedule(
            name=rng.choice("xy"),
            every=rng.choice([1_000, 30_000]),
            start=start,
            missed=rng.choice(list(Missed)),
            missed_limit=2,
            overlap=rng.choice(list(Overlap)),
            jitter=rng.choice([0, 0, 700]),
        )
        [slot] = next_slots(schedule, self.clock.now(), 1)
        declared = rng.random() < 0.7
        kept = self.run(self.store.put_schedule(schedule, slot, declared=declared))
        assert kept == self.reference.schedules.put(schedule, slot, declared=declared)

    def change_schedule(self, rng: Random) -> None:
        name, how = (
            rng.choice("xy"),
            rng.choice(["pauses", "pauses", "goes on", "goes on later", "is over", "is removed"]),
        )
        known = [each for each in self.reference.schedules.all() if each.schedule.name == name]
        if not known:
            with pytest.raises(ScheduleNotFound):
                self.run(self.store.remove_schedule(name))
        elif how == "is removed":
            self.run(self.store.remove_schedule(name))
            self.reference.schedules.remove(name)
        elif how == "pauses":
            assert self.run(self.store.pause_schedule(name)) == self.reference.schedules.pause(name)
        else:
            later = next_slots(known[0].schedule, self.clock.now(), 1)[0]
            slot = {"goes on": 0, "goes on later": later, "is over": None}[how]
            assert self.run(self.store.resume_schedule(name, slot)) == self.reference.schedules.resume(name, slot)

    # --- workers

    def fire(self, rng: Random) -> None:
        """A worker does what it was told is due; others may have been told as well, and have done it before."""
        worker = self.some_worker(rng)
        said = self.next_exchange(worker, rng.randint(0, 1))
        for record in self.due:
            if rng.random() < 0.7:
                said.fires += due_fires(record, self.clock.now())
        self.say(worker, said)

    def start_worker(self, rng: Random) -> None:
        if len(self.workers) < 3:
            self.workers.append(self.register(rng.choice(LANES), rng.choice(LEASES), rng.randint(0, 2)))

    def claim(self, rng: Random) -> None:
        worker = self.some_worker(rng)
        self.say(worker, self.next_exchange(worker, rng.randint(1, 4)))

    def work(self, rng: Random) -> None:
        """One wake of a worker, preferably one that owns runs: saves, settles, watches and claims."""
        busy = [worker for worker in self.workers if self.reference.owned(worker.id)]
        worker = rng.choice(busy or self.workers)
        said = self.next_exchange(worker, rng.randint(0, 2))
        for claim in [claim for owner, claim in self.claims if owner is worker and self.owns(worker, claim)]:
            saves = [self.some_save(rng, claim) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
            # Two saves of one batch do not take the same signal.
            said.saves += [save for n, save in enumerate(saves) if n == 0 or save.consumes is None]
            if rng.random() < 0.5:
                said.settles.append(self.some_settle(rng, claim))
            else:
                wait = for_signal(rng.choice(NAMES))
                said.watches.append(Watch(ref=claim.ref, token=claim.token, wait=wait))
        self.say(worker, said)

    def exchange_again(self, rng: Random) -> None:
        """The reply was lost, and the worker repeats what it said: it gets the same, and nothing happens twice."""
        worker = self.some_worker(rng)
        if worker.last is None or worker.reply is None:
            return
        said = replace(worker.last, repeated=True)
        reply = self.run(self.store.exchange(said))
        again = self.reference.repeat(said, reply, worker.reply, self.shown)
        self.claims += [(worker, claim) for claim in again]
        worker.reply = reply
        self.look()

    def write_late(self, rng: Random) -> None:
        """A claim that owns nothing any more writes nothing, whether its worker lives or not."""
        stale = [(worker, claim) for worker, claim in self.claims if not self.owns(worker, claim)]
        if not stale:
            return
        worker, claim = rng.choice(stale[-10:])
        said = self.next_exchange(worker, 1)
        if rng.random() < 0.5:
            said.saves.append(self.some_save(rng, claim))
        else:
            said.settles.append(self.some_settle(rng, claim))
        self.say(worker, said)

    def time_passes(self, rng: Random) -> None:
        self.clock.advance(ms=rng.choice([1, 500, 500, 1_000, 5_000, 50_000, -500]))

    def live_or_die(self, rng: Random) -> None:
        """A worker renews, lets its lease end, is seen to die by its supervisor, or hands back in good order."""
        worker = rng.choice(self.workers + self.gone[-1:])
        known = self.reference.workers.get(worker.id)
        how = rng.choice(["renews", "is silent", "dies", "dies", "retires"])
        if how == "renews":
            keeper = self.store.keeper(worker.id, worker.lease)
            assert keeper.renew() == (known is not None)
            keeper.close()
            if known:
                known.lease_until = self.clock.now() + worker.lease
        elif how == "is silent":
            if known:
                self.clock.advance(ms=max(0, known.lease_until - self.clock.now()))
            taken = self.run(self.store.reclaim()).count
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
            self.workers.append(self.register(LANES[0], LEASES[2]))

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

    @invariant()
    def no_more_of_a_group_begin_than_its_limit(self) -> None:
        """More than that run only when they did so before it was lowered."""
        for key in self.reference.turns.asked:
            running = {run.shown.id for run in self.reference.turns.running(key)}
            if len(running) > self.reference.turns.most(key):
                assert running <= self.ran[key]
            self.ran[key] = running

    @invariant()
    def schedules_stand_where_the_model_says(self) -> None:
        assert self.run(self.store.schedules()) == self.reference.schedules.all()
        self.fine = True

    def end(self) -> None:
        """All runs end, and all are pruned: then nothing is used any more, and nothing of them is left."""
        for worker, claim in self.claims:
            if self.owns(worker, claim):
                said = self.next_exchange(worker, 0)
                said.settles.append(Settle(ref=claim.ref, token=claim.token, to=To.SUCCEEDED, body="1"))
                self.say(worker, said)
        for run in list(self.reference.runs.values()):
            if not run.shown.state.final:
                assert self.run(self.store.cancel(run.id, "x")) == self.reference.cancel(run.id, "x")
        self.the_store_shows_what_the_model_says()
        self.what_is_used_is_what_runs_use()
        assert not any(record.running for record in self.run(self.store.limits()))
        assert not any(worker.running for worker in self.run(self.store.workers()))
        self.prune_all()
        assert self.run(all_runs(self.store)) == self.run(self.store.counts()) == []
        assert [each.last_run for each in self.run(self.store.schedules()) if each.last_run] == []
        for run in self.reference.runs.values():
            assert self.run(self.store.history(run.id)) == self.run(self.store.signals(run.id)) == []
        # What comes after is new: to its id, its key, its group and its session.
        anew = [replace(run.start, parent=None) for run in self.reference.runs.values()]
        keys = {run.unique.key: run for run in anew if run.unique}
        for start in [*keys.values(), *(run for run in anew if not run.unique)]:
            [answer] = self.run(self.store.enqueue([start]))
            assert (answer.id, answer.existed) == (start.id, False)

    def prune_all(self) -> None:
        while self.run(self.store.prune([Retention(count=0)], limit=7)):
            pass

    def check_owners(self) -> None:
        """Each running run has one owner, and nothing else has any."""
        owners = {worker.name: worker.running for worker in self.run(self.store.workers())}
        assert owners == {
            worker.name: len(self.reference.owned(number))
            for number, worker in self.reference.workers.items()
            if worker.lease_until > self.clock.now()
        }


@pytest.mark.one_partition("the order within a queue, the limits and the tokens that the model has")
@pytest.mark.parametrize("backend", STORES)
def test_a_store_does_what_the_model_does(backend: str) -> None:
    machine = type("Machine", (StoreMachine,), {"backend": backend})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=MANY or STORES[backend].examples,
            derandomize=not MANY,
            database=None,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            report_multiple_bugs=False,
            # Shrinking tries hundreds: too long where each of them takes a new database.
            phases=[phase for phase in Phase if phase is not Phase.shrink or STORES[backend].examples >= 100],
        ),
    )
