"""Errors of PostgreSQL in the middle of everything: what was rolled back is done again, and nothing is done twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.conftest import MakeWorld
from faults.flows import journey_result
from faults.kit import World, persistently, until
from faults.test_lost_replies import start_journeys
from perdure.errors import StoreUnavailable
from perdure.model import State
from servers.postgres import Postgres, PostgresServer, migrated_postgres, store_schema, unprivileged

pytestmark = pytest.mark.anyio

_INJECTION = """
CREATE SEQUENCE public.calls;
CREATE TABLE public.fault (code text, every int);
CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE _fault record;
BEGIN
    SELECT * INTO _fault FROM public.fault;
    IF FOUND AND nextval('public.calls') % _fault.every = 0 THEN  -- A sequence counts on when all else is rolled back.
        RAISE EXCEPTION 'injected' USING ERRCODE = _fault.code;
    END IF;
    RETURN NULL;
END $$;
"""
_TABLES = ("run", "live", "ended", "checkpoint")


@pytest.fixture
def world(make_world: MakeWorld, postgres: Postgres, tmp_path: Path) -> World:
    """On a store whose writes can be made to fail."""
    url = migrated_postgres(str(tmp_path))
    postgres.run(_INJECTION, url=url)
    for table in _TABLES:
        postgres.run(
            f"CREATE TRIGGER fail AFTER INSERT OR UPDATE OR DELETE ON perdure.{table} EXECUTE FUNCTION public.fail()",
            url=url,
        )
    return make_world(url)


def inject(postgres: Postgres, world: World, code: str, every: int) -> None:
    """From now on every so manieth writing statement fails."""
    postgres.run(f"INSERT INTO public.fault VALUES ('{code}', {every})", url=world.url)


def heal(postgres: Postgres, world: World) -> None:
    postgres.run("DELETE FROM public.fault", url=world.url)


@pytest.mark.parametrize(
    "code",
    [
        *("40001", "40P01", "55P03"),  # serialization failure, deadlock, a lock that did not come
        *("57014", "53100", "53200", "53300"),  # timeout, disk full, out of memory, too many connections
        *("57P01", "58030", "XX000"),  # shutting down, I/O error, internal error
    ],
)
async def test_every_so_often_a_call_fails(world: World, postgres: Postgres, code: str) -> None:
    inject(postgres, world, code, 37)  # more than one call has: each comes through at some time
    runs = 60
    children = len(range(0, runs, 7))
    handles = await start_journeys(world, runs)
    async with world.app.worker(concurrency=20, lease=600, grace=5):
        results = await asyncio.gather(*(handle.result(timeout=60) for handle in handles))
        await world.ended(runs + children)
        heal(postgres, world)
    assert results == [journey_result(number) for number in range(runs)]
    assert set(world.log.times_ran().values()) == {1}
    assert {record.attempt for record in await world.records()} == {1}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("40P01", "rolled the call back, others are at the same rows; try again"),
        ("53100", "has no room left on its disk: free some"),
        ("57014", "took longer for a call than statement_timeout"),
    ],
)
async def test_what_fails_for_long_is_said_and_goes_on_afterwards(
    world: World, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    monkeypatch.setattr("perdure.stores.postgres.pool._PATIENCE", 0.1)
    worker = await world.serving(lease=60)
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    inject(postgres, world, code, 1)
    world.open_gate("gate")
    with pytest.raises(StoreUnavailable, match=says):
        await world.flows.leaf.start(1)
    await until(lambda: says in world.errors(), "the worker says so")
    assert (await world.record(held.id)).state is State.RUNNING
    heal(postgres, world)
    assert await held.result(timeout=30) == worker.pid
    run = await persistently(lambda: world.flows.leaf.start(1))
    assert await run.result(timeout=30) == 2
    assert set(world.log.times_ran().values()) == {1}


@pytest.fixture
def small_disk() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="perdure-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m,mode=777", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        directory.rmdir()
        pytest.skip("only root can mount a small disk")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], capture_output=True, check=False)
    shutil.rmtree(directory, ignore_errors=True)


async def test_a_disk_that_is_full_for_a_while(make_world: MakeWorld, server: PostgresServer, small_disk: Path) -> None:
    tables = small_disk / "tables"
    tables.mkdir()
    os.chown(tables, unprivileged().get("user", -1), -1)
    server.run(f"CREATE TABLESPACE small LOCATION '{tables}'")
    server.run("CREATE DATABASE small TABLESPACE small")
    url = server.url.removesuffix("postgres") + "small"
    server.run(store_schema(url), url=url)
    world = make_world(url)
    worker = await world.serving(lease=60, concurrency=10)
    held = await world.flows.holding.start("gate")
    runs = await world.flows.journey.start_many(range(100))
    await until(lambda: world.log.count("ran") >= 50, "runs are at work")
    client = world.spawn("start", {"many": 20, "times": 100_000})
    await until(lambda: world.log.count("started", pid=client.pid), "a client starts runs")
    ballast = small_disk / "ballast"
    _fill(ballast)
    refusal = await until(lambda: world.log.find("refused", pid=client.pid), "a start is refused")
    assert refusal[0][2] == "StoreUnavailable"
    assert "has_no_room_left_on_its_disk:_free_some" in refusal[0][3]
    await until(lambda: "has no room left on its disk" in world.errors(), "the worker says so")
    world.open_gate("gate")
    client.kill()
    ballast.unlink()
    for number, run in enumerate(runs):
        assert await run.result(timeout=60) == journey_result(number)
    assert await held.result(timeout=60) == worker.pid
    assert world.log.ran_after_kept() == []
    assert worker.code is None


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
