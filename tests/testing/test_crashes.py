"""The explorer of crashes finds what is wrong, and nothing else."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from perdure import App, Retry, current_run, sleep, step, testing, wait_signal
from perdure.engine.execution import Execution
from perdure.engine.points import Point
from perdure.engine.scope import Attempt
from perdure.engine.steps import _Attempts
from perdure.errors import InvalidInput
from perdure.model import Checkpoint, Kind, Outcome

pytestmark = pytest.mark.anyio

app = App("sqlite:////nowhere/at/all.db")
seen: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()


@step
async def add(a: int, b: int) -> int:
    seen["add"] += 1
    return a + b


@step
def double(a: int) -> int:
    return a * 2


@step(retry=Retry(attempts=3, delay=5))
async def second_time_lucky(name: str) -> str:
    seen[name] += 1
    if seen[name] == 1:
        raise ConnectionError("not yet")
    return name


@step
async def hurried(name: str) -> str:
    seen[name] += 1
    if seen[name] == 1:
        raise ConnectionError("not yet")
    return name


@step(retry=Retry(attempts=3, delay=0))
async def around_hurried(name: str) -> str:
    return await hurried(name)


@step(retry=Retry(attempts=3, delay=5))
async def around(name: str) -> str:
    return await around_hurried(name) + await hurried(f"{name} once more")


@step
async def chance() -> str:
    return uuid4().hex


@step
async def total(amounts: list[int]) -> int:
    return sum([await add(0, amount) for amount in amounts])


@app.workflow
async def child(n: int) -> int:
    return await double(n)


@app.workflow
async def everything(n: int) -> int:
    one = await add(n, 1)
    await sleep(timedelta(days=1))
    two, three, four = await asyncio.gather(double(one), add(one, 1), child.run(one))
    five = await wait_signal("more", int, timeout=timedelta(days=1))
    six = await total([1, 2])
    return one + two + three + four + five + six


@app.workflow
async def retrying() -> str:
    return await second_time_lucky(current_run().id)


@app.workflow
async def retrying_around() -> str:
    return await around("it")


@app.workflow
async def by_chance() -> str:
    return await chance()


@app.workflow
async def with_ids() -> list[str]:
    run = await child.start(1)
    await run.result()
    return [current_run().id, run.id]


@app.workflow
async def counts_itself() -> int:
    seen["body"] += 1
    await add(1, 1)
    return seen["body"]


@app.workflow
async def differs_by_attempt() -> int:
    if current_run().attempt > 1:
        return await add(2, 2)
    return await add(1, 1)


@app.workflow
async def bad_child() -> int:
    seen["child"] += 1
    await add(1, 1)
    return seen["child"]


@app.workflow
async def good_parent() -> None:
    await bad_child.run()


@app.workflow
async def fails_for_good() -> None:
    await add(1, 1)
    raise ValueError("as it should be")


@app.workflow
async def waits_in_vain() -> None:
    await wait_signal("never")


async def test_a_good_workflow_passes_all_points() -> None:
    report = await testing.explore_crashes(everything, 1, signals=[("more", 5)])
    report.check()
    assert report.ok
    assert report.undisturbed == "succeeded with 21"
    assert report.runs == report.points + 2
    assert report.points > 25
    assert str(report) == f"everything: {report.runs} runs, {report.points} points to crash at; all succeeded with 21"


async def test_pairs_of_crashes_are_explored_on_request() -> None:
    report = await testing.explore_crashes(with_ids, pairs=True)
    report.check()
    assert report.runs > 2 * report.points


async def test_the_number_of_runs_is_bounded_and_the_report_says_so() -> None:
    report = await testing.explore_crashes(everything, 1, signals=[("more", 5)], at_most=5)
    assert report.runs == 5
    assert report.left_out == report.points - 3
    assert "crashes left out" in str(report)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"at_most": 0}, "at_most is a whole number over 2, which is how many runs are undisturbed, not 0"),
        ({"at_most": 2}, "at_most is a whole number over 2"),
        ({"at_most": True}, "at_most is a whole number over 2, .*, not True"),
        ({"at_most": 5.5}, "at_most is a whole number over 2, .*, not 5.5"),
        ({"signals": "ab"}, r"signals are pairs of a name and a value, as in \[\('approve', True\)\], not 'ab'"),
        ({"signals": {"more": 5}}, "signals are pairs of a name and a value, .*, not {'more': 5}"),
        ({"signals": ["ab"]}, r"a signal is a pair of a name and a value, as in \('approve', True\), not 'ab'"),
        ({"signals": [("more",)]}, r"a signal is a pair of a name and a value, .*, not \('more',\)"),
        ({"signals": [(5, "more")]}, "a signal's name is a string of 1 to 200 printable characters, not 5"),
    ],
)
def test_what_can_not_be_explored(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        testing.explore_crashes(everything, 1, **given)


async def test_retries_are_not_taken_for_steps_that_run_too_often() -> None:
    (await testing.explore_crashes(retrying)).check()


async def test_a_step_that_is_tried_again_in_another_one_is_not_taken_for_one_that_runs_too_often() -> None:
    report = await testing.explore_crashes(retrying_around, before=seen.clear)
    report.check()
    assert report.undisturbed == "succeeded with 'itit once more'"


async def test_a_failing_workflow_may_fail_the_same_each_time() -> None:
    report = await testing.explore_crashes(fails_for_good)
    report.check()
    assert report.undisturbed == "failed: ValueError: as it should be"


async def test_results_by_chance_need_to_be_told_apart_by_the_test() -> None:
    report = await testing.explore_crashes(by_chance)
    assert "one time and another" in str(report)
    (await testing.explore_crashes(by_chance, same=lambda a, b: len(a) == len(b))).check()


async def test_a_count_in_a_module_is_found() -> None:
    report = await testing.explore_crashes(counts_itself, before=seen.clear)
    assert not report.ok
    assert "killed before step add: ended succeeded with 2, instead of succeeded with 1" in str(report)
    with pytest.raises(AssertionError, match=r"counts_itself: .* problems"):
        report.check()


async def test_a_count_that_grows_even_undisturbed_is_found() -> None:
    report = await testing.explore_crashes(counts_itself)
    assert "one time and another" in str(report)


async def test_code_that_changes_its_mind_is_found() -> None:
    report = await testing.explore_crashes(differs_by_attempt)
    found = {str(problem.crashes[0]): problem.what for problem in report.problems}
    assert "ArgumentsChanged" in found["after the checkpoint of step add"]
    assert found["before step add"].startswith("ended succeeded with 4")


async def test_a_child_that_ends_otherwise_is_found() -> None:
    report = await testing.explore_crashes(good_parent, before=seen.clear)
    assert "run bad_child ended succeeded with 2, instead of succeeded with 1" in str(report)


async def test_a_run_without_end_is_reported() -> None:
    report = await testing.explore_crashes(waits_in_vain)
    assert "does not end: waiting" in str(report)


async def test_an_engine_that_forgets_a_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    save = Execution.save

    async def forgetful(self: Execution, checkpoint: Checkpoint, **more: Any) -> None:
        if checkpoint.kind is not Kind.STEP or checkpoint.outcome is Outcome.OPEN:
            await save(self, checkpoint, **more)

    monkeypatch.setattr(Execution, "save", forgetful)
    report = await testing.explore_crashes(everything, 1, signals=[("more", 5)])
    assert "undisturbed, step add ran again, though its checkpoint was saved" in str(report)


async def test_an_engine_that_runs_a_kept_step_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Execution.saved

    async def blind(self: Execution, key: str, kind: Kind, digest: str = "") -> Checkpoint | None:
        found = await saved(self, key, kind, digest)
        return None if key == "add" else found

    monkeypatch.setattr(Execution, "saved", blind)
    report = await testing.explore_crashes(counts_itself, before=seen.clear)
    assert "before settle: step add ran again, though its checkpoint was saved" in str(report)


async def test_an_engine_that_tries_too_often_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    once = _Attempts._try

    async def twice(self: _Attempts, attempt: Attempt) -> Any:
        if self.execution.claim.cut_off:
            self.execution.tap(Point.BEFORE_STEP, self.key)
        return await once(self, attempt)

    monkeypatch.setattr(_Attempts, "_try", twice)
    report = await testing.explore_crashes(counts_itself, before=seen.clear)
    assert "step add ran 3 times, where 2 are the most (1 were cut off)" in str(report)


def test_it_works_without_an_event_loop() -> None:
    testing.explore_crashes(with_ids).wait().check()
