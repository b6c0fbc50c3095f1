"""When leases that ended say nothing of their workers."""

from __future__ import annotations

import asyncio

import pytest

from perdure.stores.shared import leases
from perdure.stores.shared.leases import Promptness

pytestmark = pytest.mark.anyio


async def test_a_server_that_is_always_late_is_slow_and_did_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HELD_UP", -1.0)  # each answer is late
    promptness = Promptness()
    assert [await promptness.hung(asyncio.sleep(0)) for _ in range(3)] == [True, False, False]
    monkeypatch.setattr(leases, "HELD_UP", 1000.0)
    assert not await promptness.hung(asyncio.sleep(0))
    monkeypatch.setattr(leases, "HELD_UP", -1.0)
    assert await promptness.hung(asyncio.sleep(0))
