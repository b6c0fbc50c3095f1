"""Which run is to blame when a worker dies."""

from __future__ import annotations

import random

import pytest

from perdure.blame import Suspect, Verdict, crash_backoff, judge
from perdure.model import State


def longest(_: float, most: float) -> float:
    return most


def suspect(ref: int, crashes: int, *, worker: int = 1, most: int = 5, cancelling: bool = False) -> Suspect:
    return Suspect(worker, ref, token=ref, crashes=crashes, max_crashes=most, cancelling=cancelling)


def test_the_blame_goes_to_those_of_each_worker_that_crashed_most() -> None:
    assert judge([suspect(10, 1), suspect(11, 0), suspect(12, 0, worker=2)], 1000, longest) == [
        Verdict(10, State.SCHEDULED, 2, 1000 + crash_backoff(2)),
        Verdict(11, State.QUEUED, 0, None),
        Verdict(12, State.QUEUED, 1, None),
    ]


def test_a_run_that_crashed_too_often_alone_is_poison() -> None:
    assert judge([suspect(10, 4, cancelling=True)], 0, longest) == [Verdict(10, State.FAILED, 5, None)]


def test_a_run_that_is_being_cancelled_does_not_back_off() -> None:
    assert judge([suspect(10, 3, most=9, cancelling=True)], 0, longest) == [Verdict(10, State.QUEUED, 4, None)]


def test_of_several_suspects_none_fails_and_the_one_that_was_claimed_last_comes_back_first() -> None:
    assert judge([suspect(10, 4), suspect(11, 4)], 0, longest) == [
        Verdict(10, State.SCHEDULED, 5, crash_backoff(5)),
        Verdict(11, State.QUEUED, 5, None),
    ]


def test_suspects_that_can_not_be_told_apart_for_very_long_fail_together() -> None:
    assert {verdict.state for verdict in judge([suspect(10, 19), suspect(11, 19)], 0, longest)} == {State.FAILED}


def test_to_judge_ten_times_as_many_is_ten_times_the_work() -> None:
    compared = 0

    class Counted(Suspect):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = Suspect.__hash__

    suspects = [Counted(1, ref, ref, 1, 5, cancelling=False) for ref in range(1000)]
    assert [verdict.state for verdict in judge(suspects, 0, longest)].count(State.QUEUED) == 1
    assert compared <= len(suspects)


@pytest.mark.parametrize("lives", [0.05, 0.5, 2.0, 10.0])
def test_a_long_run_beside_one_that_ends_its_process_is_not_taken_for_it(lives: float) -> None:
    """Plays it: a culprit that dies `lives` seconds after its claim, and a step of a minute in the same process."""
    chance = random.Random(7)
    for _ in range(200):
        crashes, ready, now = {1: 0, 2: 0}, {1: 0.0, 2: 0.0}, 0.0
        while True:
            begun = {ref: max(now, ready[ref]) for ref in (1, 2)}
            now = begun[1] + lives
            if begun[2] + 60 <= now:
                break  # the long one has ended well
            order = sorted((at, ref) for ref, at in begun.items() if at < now)
            held = [
                Suspect(1, ref, token, crashes[ref], max_crashes=5, cancelling=False)
                for token, (_, ref) in enumerate(order)
            ]
            verdicts = {verdict.ref: verdict for verdict in judge(held, round(now * 1000), chance.uniform)}
            assert 2 not in verdicts or verdicts[2].state is not State.FAILED
            if verdicts[1].state is State.FAILED:
                break
            for ref, verdict in verdicts.items():
                crashes[ref], ready[ref] = verdict.crashes, (verdict.wake_at or 0) / 1000
