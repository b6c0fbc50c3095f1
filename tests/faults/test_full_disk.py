"""The store's disk is full, its file can't be written, its directory is gone: for a while."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.flows import journey_result
from faults.kit import Process, World, until
from perdure.model import State

pytestmark = pytest.mark.anyio


class Limited:
    """Processes may not write files beyond a size: for them it is as if the disk were full. Works for any user."""

    def __init__(self, world: World) -> None:
        self._world = world

    def fill(self, *processes: Process) -> None:
        files = [path.stat().st_size for path in (self._world.directory / "store").iterdir()]
        for process in processes:
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (max(files) // 2, hard))

    def make_room(self, *processes: Process) -> None:
        for process in processes:
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))


class Small:
    """The store lies on a small disk, which a large file fills."""

    def __init__(self, world: World) -> None:
        self._ballast = world.directory / "store" / "ballast"

    def fill(self, *_: Process) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 10, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def make_room(self, *_: Process) -> None:
        self._ballast.unlink()


def _mounted(directory: Path) -> bool:
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(params=["limit", "disk"])
def disk(request: pytest.FixtureRequest, world: World, kind: str) -> Iterator[Limited | Small]:
    if kind != "sqlite":
        pytest.skip("another store's disk is its server's affair")
    if request.param == "limit":
        if not hasattr(resource, "prlimit"):
            pytest.skip("this system does not limit other processes' files")
        yield Limited(world)
        return
    directory = world.directory / "store"
    if not _mounted(directory):
        pytest.skip("only root can mount a small disk")
    try:
        yield Small(world)
    finally:
        subprocess.run(["umount", "-l", str(directory)], capture_output=True, check=False)


async def test_a_full_disk_stops_work_until_there_is_room_and_loses_nothing(
    world: World, disk: Limited | Small
) -> None:
    worker = await world.serving(lease=1, concurrency=10)
    held = await world.flows.holding.start("gate")
    runs = await world.flows.journey.start_many(range(200))
    await until(lambda: world.log.count("ran") >= 100, "runs are at work")
    client = world.spawn("start", {"many": 20, "times": 100000})
    await until(lambda: world.log.count("started", pid=client.pid), "a client starts runs")
    disk.fill(worker, client)
    refusal = await until(lambda: world.log.find("refused", pid=client.pid), "a start is refused")
    assert refusal[0][2] == "StoreUnavailable"
    assert str(world.directory) in refusal[0][3]
    assert "disk" in refusal[0][3]
    at_work = world.log.count("ran")
    await until(lambda: world.errors().count("next try") >= 2, "the worker tries again")
    world.open_gate("gate")  # what it has to say is not lost, it can't be said now
    assert worker.code is None
    client.kill()
    disk.make_room(worker)
    for number, run in enumerate(runs):
        assert await run.result(timeout=60) == journey_result(number)
    assert await held.result(timeout=60) == worker.pid
    assert at_work <= world.log.count("ran")
    assert world.log.ran_after_kept() == []
    await until(lambda: nothing_is_left(world), "everything that was started ended", timeout=90)
    assert worker.code is None
    assert set(await world.states()) == {State.SUCCEEDED}


async def nothing_is_left(world: World) -> bool:
    return all(state.final for state in await world.states())
