"""Pauses between tries grow to a limit, and are not all alike."""

from __future__ import annotations

from itertools import islice

from perdure.backoff import pauses


def test_pauses_grow_to_the_longest() -> None:
    for nominal, pause in zip([0.1, 0.2, 0.4, 0.8, 1.0, 1.0], pauses(0.1, 1.0), strict=False):
        assert nominal / 2 <= pause <= nominal


def test_no_two_go_in_step() -> None:
    assert list(islice(pauses(1, 1), 20)) != list(islice(pauses(1, 1), 20))
