"""From a history to rows on a common axis of time."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec import json

from perdure.cli.timeline import Axis, ChildRun, Mark, Row, axis, rows
from perdure.errors import ErrorInfo
from perdure.model import Checkpoint, Kind, Outcome, RunRecord, State

positions = count(1)
ERROR = json.encode(ErrorInfo("builtins:ValueError", "no")).decode()


def run(*, state: State = State.RUNNING, created: int = 0, started: int | None = 0, finished: int | None = None):
    return RunRecord(
        id="r", workflow="w", queue="q", priority=0, state=state, attempt=1, crashes=0, input="{}",
        created_at=created, started_at=started, finished_at=finished,
    )  # fmt: skip


def kept(key: str, begin: int, end: int, kind: Kind = Kind.STEP, outcome: Outcome = Outcome.OK, **more) -> Checkpoint:
    return Checkpoint(key, kind, outcome, started_at=begin, saved_at=end, position=next(positions), **more)


def only(history: list[Checkpoint], children: dict[str, ChildRun] | None = None, now: int = 1000, **of: Any) -> Row:
    (row,) = rows(run(**of), history, children or {}, now)
    return row


def test_a_step_is_a_bar_from_its_start_to_its_checkpoint() -> None:
    row = only([kept("charge", 10, 40, attempts=3)])
    assert (row.label, row.begin, row.end, row.mark, row.attempts, row.error) == ("charge", 10, 40, Mark.OK, 3, "")


def test_rows_are_in_order_of_time_not_of_saving() -> None:
    found = rows(run(), [kept("b", 5, 8), kept("a", 1, 9)], {}, 10)
    assert [row.label for row in found] == ["a", "b"]


def test_what_begins_together_is_in_the_order_of_saving() -> None:
    found = rows(run(), [kept("b", 5, 8), kept("a", 5, 9)], {}, 10)
    assert [row.label for row in found] == ["b", "a"]


def test_nested_steps_are_below_their_step() -> None:
    history = [
        kept("outer/inner", 1, 2),
        kept("outer/~1/inner", 2, 3),
        kept("outer/inner/deep", 1, 2),
        kept("outer", 1, 4),
        kept("other", 0, 9),
    ]
    assert [(row.label, row.depth) for row in rows(run(), history, {}, 10)] == [
        ("other", 0),
        ("outer", 0),
        ("inner", 1),
        ("deep", 2),
        ("~1/inner", 1),
    ]


def test_what_is_nested_in_a_step_that_goes_on_has_its_whole_key() -> None:
    assert only([kept("outer/inner", 1, 2)]).label == "outer/inner"


def test_a_slash_in_a_key_of_the_users_is_no_nesting() -> None:
    row = only([kept("[parse:a/b.py]", 1, 2)])
    assert (row.label, row.depth) == ("[parse:a/b.py]", 0)


def test_a_failed_step_says_why() -> None:
    row = only([kept("charge", 1, 2, outcome=Outcome.ERROR, body=ERROR)])
    assert (row.mark, row.error) == (Mark.FAILED, "ValueError: no")


def test_a_step_between_two_attempts_says_when_and_why() -> None:
    row = only([kept("charge", 1, 2, outcome=Outcome.OPEN, body=ERROR, at=5000, attempts=2)])
    assert (row.mark, row.end, row.until, row.error) == (Mark.OPEN, None, 5000, "ValueError: no")


@pytest.mark.parametrize(
    ("now", "of", "end", "mark"),
    [
        (50, {}, None, Mark.OPEN),
        (100, {}, 100, Mark.WAITED),
        (900, {}, 100, Mark.WAITED),
        (900, {"finished": 60, "state": State.CANCELLED}, 60, Mark.CANCELLED),
        (900, {"finished": 400, "state": State.SUCCEEDED}, 100, Mark.WAITED),
    ],
)
def test_a_sleep_is_over_when_its_time_has_come(now: int, of: dict[str, Any], end: int | None, mark: Mark) -> None:
    row = only([kept("sleep", 10, 11, Kind.SLEEP, Outcome.OPEN, at=100)], now=now, **of)
    assert (row.begin, row.end, row.mark, row.until) == (10, end, mark, 100)


def test_a_wait_for_a_signal_is_open_until_it_comes() -> None:
    row = only([kept("signal:go", 10, 11, Kind.SIGNAL, Outcome.OPEN, at=7000)])
    assert (row.end, row.mark, row.note, row.until) == (None, Mark.OPEN, "waiting", 7000)
    row = only([kept("signal:go", 10, 90, Kind.SIGNAL, body="true")])
    assert (row.end, row.mark) == (90, Mark.OK)


def test_a_wait_ends_with_the_run() -> None:
    row = only([kept("signal:go", 10, 11, Kind.SIGNAL, Outcome.OPEN)], finished=70, state=State.CANCELLED)
    assert (row.end, row.mark) == (70, Mark.CANCELLED)


def test_a_child_is_as_its_run_is_with_its_steps_below() -> None:
    child = ChildRun(run(state=State.FAILED, created=5, started=6, finished=60), [kept("inner", 7, 9)])
    child.run.body = ERROR
    history = [kept("sub", 5, 6, Kind.CHILD, body='"r/sub"'), kept("sub.result", 6, 61, Kind.RESULT, Outcome.ERROR)]
    found = rows(run(), history, {"sub": child}, 100)
    assert [(row.label, row.depth, row.begin, row.end, row.mark) for row in found] == [
        ("sub", 0, 5, 60, Mark.FAILED),
        ("inner", 1, 7, 9, Mark.OK),
    ]
    assert (found[0].note, found[0].error) == ("failed", "ValueError: no")


def test_a_child_that_goes_on() -> None:
    child = ChildRun(run(state=State.QUEUED), more=True)
    row = only([kept("sub", 5, 6, Kind.CHILD, body='"r/sub"')], {"sub": child})
    assert (row.end, row.mark, row.note) == (None, Mark.OPEN, "queued, with more steps")


def test_a_child_that_was_not_looked_up_is_known_by_its_result() -> None:
    start = kept("sub", 5, 6, Kind.CHILD, body='"r/sub"')
    assert (only([start]).end, only([start]).mark, only([start]).note) == (None, Mark.OPEN, "r/sub")
    row = only([start, kept("sub.result", 6, 80, Kind.RESULT)])
    assert (row.end, row.mark) == (80, Mark.OK)


def test_the_result_of_another_run_has_its_own_row() -> None:
    row = only([kept("result:order-7", 6, 80, Kind.RESULT, Outcome.ERROR)])
    assert (row.label, row.mark, row.error) == ("result:order-7", Mark.FAILED, "it did not end in time")


def test_the_axis_goes_from_the_start_to_the_end_or_to_now() -> None:
    shown = rows(run(), [kept("a", 20, 30)], {}, 100)
    assert axis(run(started=10), shown, 100) == Axis(10, 100)
    assert axis(run(started=10, finished=50), shown, 100) == Axis(10, 50)
    assert axis(run(started=25, finished=50), shown, 100) == Axis(20, 50), "a row may begin before, by another clock"
    assert axis(run(created=100, started=None), [], 100) == Axis(100, 101)


@pytest.mark.parametrize(
    ("begin", "end", "cells"),
    [
        (0, 1000, (0, 10)),
        (0, 500, (0, 5)),
        (500, 1000, (5, 10)),
        (0, 0, (0, 1)),
        (1000, 1000, (9, 10)),
        (501, 502, (5, 6)),
        (-50, 2000, (0, 10)),
    ],
)
def test_bars_are_in_proportion_and_never_empty(begin: int, end: int, cells: tuple[int, int]) -> None:
    assert Axis(0, 1000).cells(begin, end, 10) == cells
