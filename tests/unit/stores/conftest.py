"""What tests of stores share."""

from __future__ import annotations

import pytest

from conformance.kit import ManualClock


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    """Time that a test moves."""
    return ManualClock()
