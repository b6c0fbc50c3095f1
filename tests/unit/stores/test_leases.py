"""When leases that ended say nothing of their workers."""

from __future__ import annotations

import pytest

from perdure.stores.shared.leases import HELD_UP, is_late


@pytest.mark.parametrize(
    ("asked", "now", "late"),
    [
        (1_000, 1_000 + HELD_UP - 1, False),
        (1_000, 1_000 + HELD_UP, True),
        (3_600_000, 1_000, False),  # the store's clock was put back
        (1_000, 3_600_000, True),  # or forward: nobody could renew by it yet
        (None, 3_600_000, False),
    ],
)
def test_a_store_is_late_by_its_own_clock(asked: int | None, now: int, *, late: bool) -> None:
    assert is_late(asked, now) is late
