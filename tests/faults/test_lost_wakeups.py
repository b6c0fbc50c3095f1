"""All wake-ups are lost: everything is found by looking, only later."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from faults.kit import PATIENCE, World, until

pytestmark = pytest.mark.anyio


async def test_without_wake_ups_work_is_found_by_looking(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind != "sqlite":
        pytest.skip("another store loses its wake-ups in another way")
    sockets = Path(tempfile.mkdtemp(prefix="p-", dir="/tmp"))  # short: sockets have short names
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    try:
        worker = await world.serving(lease=5, env={"TMPDIR": str(sockets)})
        first = await world.flows.leaf.start(1)
        assert await first.result(timeout=30) == 2
        assert list(sockets.rglob("perdure-*/*")), "there were no wake-ups to lose"
        asking = await world.flows.asking.start()
        waiting = asyncio.ensure_future(asking.result(timeout=30))
        for directory in sockets.iterdir():
            shutil.rmtree(directory)
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*(world.flows.leaf.run(number) for number in range(20)))
        assert results == list(range(1, 21))
        for number in range(3):  # to a run that is parked
            await asking.signal("number", number)
        assert await waiting == [0, 1, 2]
        late = await world.flows.leaf.options(delay=0.2).start(1)
        assert await late.result(timeout=30) == 2
        held = await world.flows.holding.start("gate")
        await until(lambda: world.log.count("ran", held.id), "the run is at work")
        await held.cancel("enough")
        await until(lambda: world.log.count("cancelled", held.id), "the run was told")
        assert worker.code is None
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
