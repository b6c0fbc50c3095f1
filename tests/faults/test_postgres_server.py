"""PostgreSQL itself is killed, stopped, out of connections, read-only, slow: nothing is lost, and work goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import psycopg
import pytest

from faults.conftest import MakeWorld
from faults.flows import journey_result
from faults.kit import PATIENCE, World, persistently, until
from perdure.errors import StoreUnavailable
from perdure.stores.postgres.listen import channel
from servers.postgres import PostgresServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(make_world: MakeWorld, server: PostgresServer) -> AsyncIterator[World]:
    """On a server of the test's own."""
    world = make_world(f"{server.url}?connect_timeout=2")
    yield world
    server.freeze(frozen=False)
    server.start()  # so that everybody can say goodbye


def sessions(server: PostgresServer, condition: str) -> list[int]:
    """The pids of those server processes that serve clients of Perdure, and for which a condition is true."""
    served = "backend_type = 'client backend' AND application_name = 'perdure'"
    return [pid for (pid,) in server.run(f"SELECT pid FROM pg_stat_activity WHERE {served} AND ({condition})")]


LISTENING = f"query LIKE 'LISTEN%{channel('perdure')}%'"


def end_sessions(server: PostgresServer, condition: str) -> int:
    """Cuts connections of Perdure for which a condition is true; returns how many."""
    pids = sessions(server, condition)
    server.run(f"SELECT pg_terminate_backend(pid) FROM unnest(ARRAY{pids}::int[]) AS pid")
    return len(pids)


async def test_wake_ups_are_cut_off_while_work_goes_on(
    world: World, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.pump.POLL", 3600.0)  # what is found is found by a wake-up
    monkeypatch.setattr("perdure.client._POLL", 3600.0)
    started = 0
    async with world.app.worker(lease=60, grace=5, concurrency=20):
        for _ in range(5):
            runs = await world.flows.leaf.start_many(range(started, started + 40))
            assert end_sessions(server, LISTENING) > 0
            runs += await world.flows.leaf.start_many(range(started + 40, started + 60))
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*(run.result() for run in runs)) == list(range(started + 1, started + 61))
            started += 60
            await until(lambda: sessions(server, LISTENING), "somebody listens")
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            for number in range(10):
                assert await world.flows.leaf.run(number) == number + 1
        assert time.monotonic() - began < 10 * 0.5
    await world.all_once(started + 10)


async def test_all_connections_are_cut_again_and_again(world: World, server: PostgresServer) -> None:
    worker = await world.serving(lease=60, concurrency=20)
    runs = [await world.flows.journey.options(id=f"j{number}").start(number) for number in range(150)]
    for number in range(10):
        point = number * 40
        await until(lambda point=point: world.log.count("ran") >= point, f"{point} steps were begun")
        await until(lambda: end_sessions(server, "true"), "connections are cut")
    for number, run in enumerate(runs):
        assert await run.result(timeout=60) == journey_result(number)
    await world.all_once(150 + len(range(0, 150, 7)))
    assert worker.code is None


async def test_a_server_that_takes_no_writes_for_a_while(world: World, server: PostgresServer) -> None:
    worker = await world.serving(lease=60, concurrency=20)
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    _set_read_only(server, "on")
    said = await until(lambda: _refused(world), "a start is refused")  # Each connection reads its settings by itself.
    assert "takes no writes: it is a read replica" in said
    world.open_gate("gate")
    await until(lambda: "takes no writes" in world.errors(), "the worker says so")
    _set_read_only(server, "off")
    assert await held.result(timeout=30) == worker.pid
    run = await persistently(lambda: world.flows.leaf.start(1))
    assert await run.result(timeout=30) == 2
    assert set(world.log.times_ran().values()) == {1}


async def _refused(world: World) -> str:
    try:
        await world.flows.leaf.start(1)
    except StoreUnavailable as error:
        return str(error)
    return ""


def _set_read_only(server: PostgresServer, value: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
        connection.execute("SELECT pg_reload_conf()")


async def test_a_server_that_comes_back_as_a_replica_and_is_promoted(world: World, server: PostgresServer) -> None:
    worker = await world.serving(lease=60, concurrency=20)
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    await asyncio.to_thread(server.stop)
    (server.data / "standby.signal").touch()
    await asyncio.to_thread(server.start)
    world.open_gate("gate")
    with pytest.raises(StoreUnavailable, match="is a read replica, or recovers just now"):
        await world.flows.leaf.start(1)
    await until(lambda: "is a read replica, or recovers just now" in world.errors(), "the worker says so")
    server.run("SELECT pg_promote()")
    assert await held.result(timeout=30) == worker.pid
    assert set(world.log.times_ran().values()) == {1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("statement_timeout=300", "took longer for a call than statement_timeout"),
        ("lock_timeout=100", "has a lock that somebody holds for long: find the transaction in pg_stat_activity"),
    ],
)
async def test_a_table_that_somebody_locked(
    make_world: MakeWorld, server: PostgresServer, options: str, says: str
) -> None:
    world = make_world(f"{server.url}?{options}")
    worker = await world.serving(lease=60, concurrency=20)
    run = await world.flows.leaf.start(1)
    assert await run.result(timeout=30) == 2
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    with psycopg.connect(server.url) as holder:
        holder.execute("LOCK TABLE perdure.live")
        world.open_gate("gate")
        await until(lambda: says in world.errors(), "the worker says so")
        with pytest.raises(StoreUnavailable, match=says):
            await world.flows.leaf.start(1)
    assert await held.result(timeout=30) == worker.pid
    assert set(world.log.times_ran().values()) == {1}


async def test_all_connections_are_taken_for_a_while(world: World, server: PostgresServer) -> None:
    server.settings["max_connections"] = "30"
    server.restart()
    worker = await world.serving(lease=60, concurrency=20)
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    await world.app.close()
    taken: list[psycopg.Connection] = []
    try:
        taken.append(psycopg.connect(server.url, autocommit=True))
        await until(lambda: _take_all(server, taken), "no connection is left")
        taken[0].execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'")
        await until(lambda: _take_all(server, taken), "no connection is left")
        with pytest.raises(StoreUnavailable, match="has no connection left: raise max_connections"):
            await world.flows.leaf.start(1)
        world.open_gate("gate")
        await until(lambda: "has no connection left" in world.errors(), "the worker says so")
    finally:
        for connection in taken:
            connection.close()
    assert await held.result(timeout=30) == worker.pid
    run = await persistently(lambda: world.flows.leaf.start(1))
    assert await run.result(timeout=30) == 2
    assert set(world.log.times_ran().values()) == {1}


def _take_all(server: PostgresServer, taken: list[psycopg.Connection]) -> bool:
    """Whether there is no connection left, those for superusers included; takes one more if there is."""
    try:
        taken.append(psycopg.connect(server.url))
    except psycopg.OperationalError:
        return True
    return False
