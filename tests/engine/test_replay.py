"""Whatever a workflow does, it does the same after a crash, after a wait, and without any of them.

`PERDURE_TEST_PROGRAMS` is how many programs are tried, other ones each time; without it they are few, and always the
same.
"""

from __future__ import annotations

import itertools
import logging
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from engine.programs import Program, expected, hurried, program, programs, seen
from perdure import Workflow, testing

MANY = int(os.environ.get("PERDURE_TEST_PROGRAMS", "0"))
SIGNALS = [("go", "go")] * 20


@pytest.mark.parametrize("workflow", [program, hurried])
@settings(
    max_examples=MANY or 12,
    derandomize=not MANY,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(statements=programs())
def test_a_program_does_the_same_wherever_its_worker_dies(
    caplog: pytest.LogCaptureFixture, workflow: Workflow[[Program], Any], statements: Program
) -> None:
    seen.clear()
    caplog.clear()
    report = testing.explore_crashes(workflow, statements, signals=SIGNALS, at_most=40).wait()
    assert [problem for problem in report.problems if not _is_chance(problem.what, statements)] == []
    if workflow is program:
        assert report.undisturbed == f"succeeded with {expected(statements)!r}"
    if not _has(statements, "too_long"):  # A timer of asyncio's begins anew.
        for run_id, times in seen.items():
            for before, after in itertools.pairwise(times):
                assert before[: len(after)] == after[: len(before)], f"run {run_id} saw something else"
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def _is_chance(problem: str, statements: Program) -> bool:
    """Whether it says no more than that a step was tried more often, which depends on when another one cancels it."""
    return "are the most" in problem and (_has(statements, "race") or _has(statements, "group"))


def _has(statements: Any, what: str) -> bool:
    return isinstance(statements, list) and (what in statements or any(_has(each, what) for each in statements))
