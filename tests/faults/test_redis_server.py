"""Redis itself is full, busy, loading, emptied, cut off: nothing is lost but what it forgot, and work goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import hiredis
import pytest

from faults.conftest import MakeWorld
from faults.flows import journey_result
from faults.kit import PATIENCE, World, persistently, until
from perdure.errors import RunNotFound, StoreUnavailable
from servers.redis import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(make_world: MakeWorld, redis_server: RedisServer) -> AsyncIterator[World]:
    """On a server of the test's own."""
    world = make_world(f"{redis_server.url}?connect_timeout=2")
    yield world
    redis_server.start()  # so that everybody can say goodbye


async def test_wake_ups_are_cut_off_while_work_goes_on(
    world: World, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.pump.POLL", 3600.0)  # what is found is found by a wake-up
    monkeypatch.setattr("perdure.client._POLL", 3600.0)
    started = 0
    async with world.app.worker(lease=60, grace=5, concurrency=20):
        for _ in range(5):
            runs = await world.flows.leaf.start_many(range(started, started + 40))
            assert redis_server.run("CLIENT", "KILL", "TYPE", "pubsub") > 0
            runs += await world.flows.leaf.start_many(range(started + 40, started + 60))
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*(run.result() for run in runs)) == list(range(started + 1, started + 61))
            started += 60
            await until(lambda: listens(redis_server), "somebody listens")
    await world.all_once(started)


def listens(server: RedisServer) -> bool:
    return any("sub=0" not in client.split() for client in server.run("CLIENT", "LIST").decode().splitlines())


async def test_functions_and_scripts_are_forgotten_while_work_goes_on(world: World, redis_server: RedisServer) -> None:
    await world.serving(lease=60, concurrency=20)
    runs = await world.flows.journey.start_many(range(200))
    for point in range(50, 600, 50):
        await until(lambda point=point: world.log.count("ran") >= point, f"{point} steps were begun")
        redis_server.run("FUNCTION", "FLUSH")
        redis_server.run("SCRIPT", "FLUSH")
        runs.append(await world.flows.journey.start(len(runs)))
    for number, run in enumerate(runs):
        assert await run.result(timeout=60) == journey_result(number)
    await world.all_once(len(runs) + len(range(0, len(runs), 7)))


async def test_a_server_that_takes_long_to_load(world: World, redis_server: RedisServer) -> None:
    worker = await world.serving(lease=60, concurrency=20)
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    for number in range(100):  # It looks at connections when it has loaded so many bytes.
        redis_server.run("SET", f"other:{number}", os.urandom(4096))
    redis_server.run("SAVE")
    redis_server.run("CONFIG", "SET", "appendonly", "no")
    redis_server.settings |= {
        "appendonly": "no",
        "key-load-delay": "300000",  # microseconds for each
        "loading-process-events-interval-bytes": "1024",
    }
    await asyncio.to_thread(redis_server.kill9)
    redis_server.start(wait=False)
    world.open_gate("gate")

    async def refused() -> bool:
        try:
            await world.flows.leaf.start(1)
        except StoreUnavailable as error:
            return "is loading its data from the disk; try again soon" in str(error)
        return False

    await until(refused, "the server loads")
    await until(lambda: "is loading its data" in world.errors(), "the worker says so")
    redis_server.run("CONFIG", "SET", "key-load-delay", "0")
    assert await held.result(timeout=30) == worker.pid
    run = await persistently(lambda: world.flows.leaf.start(1))
    assert await run.result(timeout=30) == 2
    assert set(world.log.times_ran().values()) == {1}


async def test_a_server_that_is_busy_with_the_script_of_another_one(world: World, redis_server: RedisServer) -> None:
    worker = await world.serving(lease=60, concurrency=20)
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    redis_server.run("CONFIG", "SET", "busy-reply-threshold", 1)
    busy = asyncio.ensure_future(asyncio.to_thread(redis_server.run, "EVAL", "while true do end", 0))

    async def refused() -> bool:
        try:
            await world.flows.leaf.start(1)
        except StoreUnavailable as error:
            return "is busy with a script that takes long: look for it in SLOWLOG" in str(error)
        return False

    await until(refused, "the server is busy")
    world.open_gate("gate")
    await until(lambda: "is busy with a script" in world.errors(), "the worker says so")
    redis_server.run("SCRIPT", "KILL")
    with pytest.raises(hiredis.ReplyError):
        await busy
    assert await held.result(timeout=30) == worker.pid
    assert world.log.count("ran", held.id) == 1


async def test_a_server_that_is_full_takes_no_starts_and_what_is_there_ends(
    world: World, redis_server: RedisServer
) -> None:
    """Also what waits, sleeps, has to be taken back from one that died, or to be done by a worker that comes later."""
    dying = await world.serving(lease=0.5, concurrency=20)
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    timed, asking = await world.flows.timed.start(), await world.flows.asking.start()
    runs = await world.flows.journey.start_many(range(50))
    redis_server.run("CONFIG", "SET", "maxmemory", 1)
    world.app.limits.declare(queue="declared", running=3)
    await world.app.limits.apply()
    dying.kill()
    heir = await world.serving(lease=0.5, concurrency=20)
    says = "is full: it uses more memory than its maxmemory; raise that, or prune runs that ended"
    with pytest.raises(StoreUnavailable, match=says):
        await world.flows.leaf.start(1)
    with pytest.raises(StoreUnavailable, match=says):
        await world.flows.leaf.start_many(range(500))
    world.open_gate("gate")
    for number in range(3):
        await asking.signal("number", number)
    await timed.signal("go", 7)
    assert await held.result(timeout=30) == heir.pid
    assert await asking.result(timeout=30) == [0, 1, 2]
    assert await timed.result(timeout=30) == 10
    for number, run in enumerate(runs):
        assert await run.result(timeout=60) == journey_result(number)
    await world.app.run(held.id).delete()
    redis_server.run("CONFIG", "SET", "maxmemory", 0)
    run = await world.flows.leaf.start(1)
    assert await run.result(timeout=30) == 2


async def test_a_server_that_is_emptied(world: World, redis_server: RedisServer) -> None:
    """What was in it is gone; its workers say so, and begin anew, each under a number of its own."""
    fleet = [await world.serving(lease=60, concurrency=5) for _ in range(3)]
    held = await world.flows.holding.start("gate")
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    result = asyncio.ensure_future(held.result(timeout=60))
    store = await world.app.client.store()
    before = {record.id for record in await store.workers()}
    redis_server.run("FLUSHALL")

    async def anew() -> bool:
        return len(await store.workers()) == 3

    await until(anew, "all workers are there again")
    assert before.isdisjoint(record.id for record in await store.workers())
    said = "the store does not know this worker any more: its lease ended, or the store was emptied"
    assert world.errors().count(said) == len(fleet)
    with pytest.raises(RunNotFound):
        await result
    await until(lambda: world.log.count("cancelled", held.id), "the code of the run that is gone was stopped")
    runs = await world.flows.journey.start_many(range(50))
    for number, run in enumerate(runs):
        assert await run.result(timeout=60) == journey_result(number)
