"""What one exchange carries at most: a fan-out of thousands must not become one huge call, which keeps a store busy for
long."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.stores.exchange import Save, Settle

MOST_SAVES = 200
"""Checkpoints; one that starts a run counts as two."""

MOST_SETTLES = 200

MOST_BYTES = 1024 * 1024
"""Of checkpoints and ends together; but one of them always. Characters are counted, which nearly all of JSON's are."""


def fitting_saves(saves: Iterable[Save]) -> tuple[int, int]:
    """How many of these go into one exchange, and the bytes that it has then."""
    return _fitting(((2 if save.starts else 1, _size(save)) for save in saves), MOST_SAVES, 0)


def fitting_settles(settles: Iterable[Settle], size: int) -> int:
    """How many of these go into an exchange that has so many bytes already."""
    return _fitting(((1, len(settle.body or "")) for settle in settles), MOST_SETTLES, size)[0]


def _fitting(items: Iterable[tuple[int, int]], most: int, size: int) -> tuple[int, int]:
    count = work = 0
    for effort, length in items:
        work += effort
        if (count or size) and (work > most or size + length > MOST_BYTES):
            break
        count, size = count + 1, size + length
    return count, size


def _size(save: Save) -> int:
    return len(save.checkpoint.body or "") + (len(save.starts.input) if save.starts is not None else 0)
