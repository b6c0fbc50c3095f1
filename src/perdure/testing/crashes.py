"""The explorer of crashes: runs a workflow again and again, and lets its worker die at each point of its life."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any

from msgspec import json

from perdure.app import App
from perdure.call import Call
from perdure.engine.halt import Halt
from perdure.engine.points import Point
from perdure.errors import DecodingError, InvalidInput
from perdure.failures import decode_failure
from perdure.model import Kind, Outcome, RunQuery, RunRecord, State, WaitFor
from perdure.options import check_signal
from perdure.stores.base import Store
from perdure.stores.exchange import PAGE
from perdure.testing.clock import VirtualClock
from perdure.testing.report import CrashReport, Place, Problem
from perdure.testing.sandbox import Sandbox
from perdure.workflow import Workflow

Signals = Sequence[tuple[str, object]]
OpenStore = Callable[[VirtualClock], Store]

_TURNS = 1000
"""How often a run may come to rest, and go on with time or a signal, before it counts as one without end."""

_UNDISTURBED = 2
"""Runs that show what is the same each time, before one is killed."""

_CHILD_TOKEN = re.compile(r"\.[0-9a-f]{8}(?=/|$)")


def explore_crashes(
    workflow: Workflow[..., Any],
    *args: Any,
    signals: Signals = (),
    before: Callable[[], object] | None = None,
    same: Callable[[Any, Any], bool] = eq,
    pairs: bool = False,
    at_most: int = 500,
    open: OpenStore | None = None,
) -> Call[CrashReport]:
    """Runs a workflow undisturbed, and then once for each point that it passed, killing its worker right there.

    The points: before a step, after its effect but before its checkpoint, after the checkpoint, when it is put away to
    wait and while it is, before its end is written; those of its children too. Another worker goes on with the run
    each time, in an empty store of its own, and by a clock of its own, which goes from due time to due time.

    Reported are runs (the children too) that end otherwise than undisturbed, and steps that run more often than is
    promised: never again once the checkpoint is saved, and once more than undisturbed for each crash that cuts it off.

    - `signals`: names and values, sent to the run one after the other, each when the run waits for it.
    - `before`: called before each run; puts fakes that the steps use back to their beginning.
    - `same`: whether two results are the same, where equality asks for too much (random ids, times).
    - `pairs`: kills a second time too, at each point that was passed after the first crash. That is many runs.
    - `at_most`: how many runs there are at most; the report tells how many points were left out.
    - `open`: opens an empty store, other than the one in memory.

        report = await testing.explore_crashes(fulfil, order, signals=[("approve", Approval(by="ada"))])
        report.check()

    Raises `InvalidInput` for signals that can't be, and for so few runs that no crash is among them.
    """
    _check(signals, at_most)
    explorer = _Explorer(workflow, args, signals, before, same, open)
    return Call(lambda: explorer.explore(at_most, pairs=pairs), f"explore_crashes of {workflow.name}")


def _check(signals: Signals, at_most: int) -> None:
    if isinstance(signals, str | Mapping):
        raise InvalidInput(f"signals are pairs of a name and a value, as in [('approve', True)], not {signals!r}")
    for each in signals:
        if not isinstance(each, Sequence) or isinstance(each, str) or len(each) != 2:
            raise InvalidInput(f"a signal is a pair of a name and a value, as in ('approve', True), not {each!r}")
        check_signal(each[0])
    if not isinstance(at_most, int) or isinstance(at_most, bool) or at_most <= _UNDISTURBED:
        raise InvalidInput(
            f"at_most is a whole number over {_UNDISTURBED}, which is how many runs are undisturbed, not {at_most!r}"
        )


@dataclass
class _End:
    """How a run ended, in terms that hold for each repetition."""

    state: State
    value: Any
    """The result, or what is to be read of the error."""

    def __str__(self) -> str:
        if not self.state.final:
            return f"{self.state} ({self.value})"
        return f"{self.state} with {self.value!r}" if self.state is State.SUCCEEDED else f"{self.state}: {self.value}"


class _Explorer:
    """The repetitions, and what is wrong with them."""

    def __init__(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        signals: Signals,
        before: Callable[[], object] | None,
        same: Callable[[Any, Any], bool],
        open_store: OpenStore | None,
    ) -> None:
        self._workflow = workflow
        self._args = args
        self._signals = signals
        self._before = before
        self._same = same
        self._open = open_store
        self._runs = 0

    async def explore(self, at_most: int, *, pairs: bool) -> CrashReport:
        first, second = await self._live(), await self._live()
        expected = first.ends.get(first.label)
        report = CrashReport(self._workflow.name, str(expected))
        different = self._compare(first, second)
        if first.again:
            report.problems = [Problem((), f"undisturbed, {what}") for what in self._ran_again(first)]
        elif different:
            report.problems = [Problem((), f"undisturbed, one time and another: {what}") for what in different]
        elif expected is None or not expected.state.final:
            report.problems = [Problem((), f"undisturbed, it does not end: {expected}")]
        else:
            await self._kill_at_each(first, report, at_most, pairs=pairs)
        report.runs = self._runs
        return report

    async def _kill_at_each(self, undisturbed: _Life, report: CrashReport, at_most: int, *, pairs: bool) -> None:
        plans: list[tuple[Place, ...]] = [(place,) for place in undisturbed.passed]
        report.points = len(plans)
        for plan in plans:  # grows while it goes on
            if self._runs >= at_most:
                report.left_out = len(plans) - plans.index(plan)
                return
            life = await self._live(plan)
            wrong = self._compare(undisturbed, life) + self._ran_again(life)
            report.problems += [Problem(plan, what) for what in wrong]
            if pairs and len(plan) == 1:
                plans += [(*plan, place) for place in life.passed_since_crash]

    async def _live(self, plan: tuple[Place, ...] = ()) -> _Life:
        if self._before is not None:
            self._before()
        self._runs += 1
        life = _Life(self._workflow.app, f"explored-{self._runs}", plan)
        await life.live(self._workflow, self._args, self._signals, self._open)
        return life

    def _compare(self, expected: _Life, life: _Life) -> list[str]:
        problems: list[str] = []
        for label in sorted(expected.ends.keys() | life.ends.keys()):
            who = "" if label == life.label else f"run {label} "
            should, did = expected.ends.get(label), life.ends.get(label)
            if should is None or did is None:
                problems.append(f"run {label} was {'started only then' if should is None else 'not started'}")
            elif should.state is not did.state or not self._same(should.value, did.value):
                problems.append(f"{who}ended {did}, instead of {should}")
        usual: dict[tuple[str, str], int] = {}
        for (run_id, key), times in expected.times.items():
            where = (expected.label_of(run_id), key)
            usual[where] = max(usual.get(where, 0), times)
        for (run_id, key), times in life.times.items():
            label = life.label_of(run_id)
            cut_off = life.cut_off[run_id, key]
            allowed = usual.get((label, key), 1) + cut_off
            if times > allowed and (run_id, key) not in life.again:
                who = life.name_of(run_id, key)
                problems.append(f"{who} ran {times} times, where {allowed} are the most ({cut_off} were cut off)")
        return problems

    def _ran_again(self, life: _Life) -> list[str]:
        return [f"{life.name_of(*one)} ran again, though its checkpoint was saved" for one in sorted(life.again)]


class _Life:
    """One run with all its children, in a sandbox of its own, with a crash at each place of the plan."""

    label = "itself"

    def __init__(self, app: App, run_id: str, plan: tuple[Place, ...]) -> None:
        self.ends: dict[str, _End] = {}
        self.times: Counter[tuple[str, str]] = Counter()
        """How often each step (run id and key) was begun."""
        self.cut_off: Counter[tuple[str, str]] = Counter()
        self.again: set[tuple[str, str]] = set()
        """Steps that were begun after their checkpoint was saved."""
        self.passed: list[Place] = []
        self._app = app
        self._run_id = run_id
        self._plan = list(plan)
        self._crashed = False
        self._crashed_at = 0
        self._visits: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._begun: set[tuple[str, str]] = set()
        """Steps that are under way, as far as the points tell."""
        self._kept: set[tuple[str, str]] = set()
        """Steps whose checkpoint is saved, as far as the points tell."""

    @property
    def passed_since_crash(self) -> list[Place]:
        return self.passed[self._crashed_at :] if self._crashed_at else []

    def label_of(self, run_id: str) -> str:
        """A name for a run that is the same in each repetition, or stands for all that can't be told apart."""
        if run_id == self._run_id:
            return self.label
        if run_id.startswith(f"{self._run_id}/"):
            return _CHILD_TOKEN.sub("", run_id.removeprefix(f"{self._run_id}/"))
        return "started elsewhere" if re.fullmatch("[0-9a-f]{24}", run_id) else run_id

    def name_of(self, run_id: str, key: str) -> str:
        label = self.label_of(run_id)
        return f"step {key}" if label == self.label else f"step {key} of run {label}"

    async def live(
        self, workflow: Workflow[..., Any], args: tuple[Any, ...], signals: Signals, open_store: OpenStore | None
    ) -> None:
        def tap(point: Point, run_id: str, key: str) -> None:
            self._tap(sandbox, point, run_id, key)

        sandbox = Sandbox(self._app, VirtualClock(), open=open_store, tap=tap)
        async with sandbox:
            store = await self._app.client.store()
            run = await workflow.options(id=self._run_id).start(*args)
            left = list(signals)
            for _ in range(_TURNS):
                await sandbox.settle()
                if self._crashed or self._pass("at rest", self._run_id, ""):
                    await self._recover(sandbox, store)
                    continue
                if all(count.state.final for count in await store.counts()):
                    break
                if left and await self._waits_for(store, left[0][0]):
                    await run.signal(*left.pop(0))
                elif sandbox.clock.next_at is not None:
                    sandbox.clock.move_to(sandbox.clock.next_at)
                else:
                    break
            await self._read_ends(store)

    async def _waits_for(self, store: Store, signal: str) -> bool:
        record = await store.load(self._run_id)
        return record is not None and any(
            wait.what is WaitFor.SIGNAL and wait.target == signal for wait in record.waits
        )

    # --- crashes

    def _tap(self, sandbox: Sandbox, point: Point, run_id: str, key: str) -> None:
        if point is Point.BEFORE_STEP:
            self.times[run_id, key] += 1
            # What an earlier attempt of it called is over.
            self._begun = {one for one in self._begun if one[0] != run_id or not one[1].startswith(f"{key}/")}
            self._begun.add((run_id, key))
            if (run_id, key) in self._kept:
                self.again.add((run_id, key))
        elif point is Point.AFTER_CHECKPOINT:
            self._begun.discard((run_id, key))
            self._kept.add((run_id, key))
        if self._pass(point, run_id, key):
            self._crashed = True
            sandbox.worker.die()
            sandbox.stirred()
            raise Halt
        if point is Point.BEFORE_SETTLE:  # which may make it begin anew, with no history
            self._kept = {one for one in self._kept if one[0] != run_id}

    def _pass(self, point: str, run_id: str, key: str) -> bool:
        """Notes that a place is passed; whether the worker is to die there."""
        where = (point, self.label_of(run_id), key)
        self._visits[where] += 1
        place = Place(point, "" if where[1] == self.label else where[1], key, self._visits[where])
        self.passed.append(place)
        if not self._plan or place != self._plan[0]:
            return False
        del self._plan[0]
        self._crashed_at = len(self.passed)
        return True

    async def _recover(self, sandbox: Sandbox, store: Store) -> None:
        self._crashed = False
        await sandbox.kill_worker()
        for run_id, key in self._begun:
            if not await _has_outcome(store, run_id, key):
                self.cut_off[run_id, key] += 1
        self._begun.clear()
        await sandbox.start_worker()

    # --- the end

    async def _read_ends(self, store: Store) -> None:
        after = None
        while records := await store.runs(RunQuery(limit=PAGE, oldest_first=True, after=after)):
            after = records[-1].position
            for record in records:
                if record.id == self._run_id or record.parent is not None:
                    self.ends[self.label_of(record.id)] = await self._end(store, record)

    async def _end(self, store: Store, record: RunRecord) -> _End:
        if not record.state.final:
            return _End(record.state, await self._app.run(record.id).why())
        body = await self._without_ids(store, record.body or "null")
        if record.state is State.FAILED:
            return _End(record.state, str(decode_failure(body)))
        value: Any = json.decode(body)
        workflow = self._app.workflows.get(record.workflow)
        if record.state is State.SUCCEEDED and workflow is not None:
            try:
                value = workflow.definition.signature.returns.decode(body)
            except DecodingError:
                pass  # an id that is part of something else, perhaps: the plain value will do
        return _End(record.state, value)

    async def _without_ids(self, store: Store, body: str) -> str:
        """A value in which the ids of this repetition's runs are the names that they have in each."""
        if self._run_id not in body:
            return body
        children: list[str] = []
        after = 0
        while page := await store.history(self._run_id, after=after):
            after = page[-1].position
            children += [json.decode(one.body or '""') for one in page if one.kind is Kind.CHILD]
        for run_id in (*children, self._run_id):
            body = body.replace(run_id, self.label_of(run_id))
        return body


async def _has_outcome(store: Store, run_id: str, key: str) -> bool:
    """Whether a step that has begun came to something, be it an error. That of an earlier attempt of the step around it
    is none."""
    kept = await store.find(run_id, key)
    if kept is None or kept.outcome is Outcome.OPEN:
        return False
    parts = key.split("/")
    around = [await store.find(run_id, "/".join(parts[:number])) for number in range(1, len(parts))]
    return not any(
        each is not None and each.outcome is Outcome.OPEN and each.position > kept.position for each in around
    )
