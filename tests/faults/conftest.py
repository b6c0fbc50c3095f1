"""The stores that faults are tried on. A new store joins with one entry in `STORES`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from faults.flows import GATES, LOG
from faults.kit import World

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda directory: f"sqlite:///{directory}/store/perdure.db",
}
"""What gives the URL of an empty store."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def world(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """An empty store, and the processes on it."""
    (tmp_path / "store").mkdir()
    world = World(STORES[kind](tmp_path), tmp_path)
    monkeypatch.setenv(LOG, str(world.log.path))
    monkeypatch.setenv(GATES, str(world.gates))
    yield world
    await world.close()
