"""The store's file can't be written, its directory is gone: for a while."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.kit import World, until

pytestmark = pytest.mark.anyio

_NOBODY = 65534


@pytest.fixture
def directory(kind: str) -> Iterator[Path]:
    """A directory that every user can reach, as the test's own can't be."""
    if kind != "sqlite":
        pytest.skip("another store has no file")
    directory = Path(tempfile.mkdtemp(prefix="perdure-faults-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


async def test_a_file_that_is_read_only_is_named_and_used_again_when_it_is_not(directory: Path) -> None:
    (directory / "store").mkdir(mode=0o777)
    (directory / "store").chmod(0o777)
    world = World(f"sqlite:///{directory}/store/perdure.db", directory)
    user = _NOBODY if os.geteuid() == 0 else None  # root may write whatever it likes
    try:
        await world.flows.leaf.start(1)
        await world.app.close()
        file = directory / "store" / "perdure.db"
        file.chmod(0o444)
        client = world.spawn("start", {"many": 1, "user": user})
        refusal = await until(lambda: world.log.find("refused", pid=client.pid), "the start is refused")
        assert "read-only" in refusal[0][3] and str(file) in refusal[0][3]
        file.chmod(0o666)
        client = world.spawn("start", {"many": 1, "user": user})
        await until(lambda: world.log.find("started", pid=client.pid), "the start goes through")
    finally:
        await world.close()


async def test_a_directory_that_is_gone_for_a_while_costs_nothing_but_time(world: World, kind: str) -> None:
    if kind != "sqlite":
        pytest.skip("another store has no directory")
    directory = world.directory / "store"
    away = world.directory / "away"
    worker = await world.serving(lease=1)
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    directory.rename(away)
    client = world.spawn("start", {"many": 1})
    refusal = await until(lambda: world.log.find("refused", pid=client.pid), "the start is refused")
    assert "does_not_exist" in refusal[0][3] and str(directory) in refusal[0][3]
    late = world.worker(lease=1)
    assert await late.ended() != 0  # a worker does not begin without a store, and makes no new one
    assert not directory.exists()
    away.rename(directory)
    world.open_gate("gate")
    assert await held.result(timeout=30) == worker.pid
    again = await world.flows.leaf.start(1)
    assert await again.result(timeout=30) == 2
    assert worker.code is None
