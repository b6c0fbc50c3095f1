"""What one transaction of pruning takes: a bounded number of rows, but always one run."""

from __future__ import annotations

import pytest

from perdure.stores.shared.retention import PRUNE_ROWS, Due, Ending

HALF = PRUNE_ROWS // 2


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], [[]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([HALF, HALF, 1], [[HALF, HALF], [1]]),
        ([PRUNE_ROWS * 3, 1, PRUNE_ROWS], [[PRUNE_ROWS * 3], [1], [PRUNE_ROWS]]),
    ],
)
def test_parts(sizes: list[int], expected: list[list[int]]) -> None:
    endings = [Ending(number, number) for number in range(len(sizes))]
    parts = list(Due(["run:p"], endings, sizes, ["b"]).parts())
    assert [part.sizes for part in parts] == expected
    assert [ending for part in parts for ending in part.endings] == endings
    assert [part.keepers for part in parts] == [["run:p"]] + [[]] * (len(parts) - 1)
    assert [part.empty for part in parts] == [["b"]] + [[]] * (len(parts) - 1)
