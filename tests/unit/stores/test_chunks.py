"""Parts of many starts: by count, and by the size of their inputs."""

from __future__ import annotations

from perdure.model import Start
from perdure.stores.shared.chunks import in_chunks

MIB = 1024 * 1024


def sizes(inputs: list[str], most: int) -> list[int]:
    starts = [Start(str(n), "w", "q", text) for n, text in enumerate(inputs)]
    chunks = list(in_chunks(starts, most))
    assert [start for chunk in chunks for start in chunk] == starts
    return [len(chunk) for chunk in chunks]


def test_small_ones_go_by_count() -> None:
    assert sizes([], 3) == []
    assert sizes(["1"] * 3, 3) == [3]
    assert sizes(["1"] * 7, 3) == [3, 3, 1]


def test_large_ones_go_by_bytes() -> None:
    assert sizes(["x" * 3 * MIB] * 5, 1000) == [2, 2, 1]
    assert sizes(["x" * 4 * MIB] * 3, 1000) == [2, 1]
    assert sizes(["\u00e4" * 4 * MIB] * 3, 1000) == [1, 1, 1], "bytes, not characters"


def test_one_that_is_larger_than_all_goes_alone() -> None:
    assert sizes(["1", "x" * 9 * MIB, "1", "1"], 1000) == [1, 1, 2]
