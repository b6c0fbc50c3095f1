"""The server of a store is killed, or dies with its workers: nothing is lost, and work goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Protocol

import pytest

from faults.conftest import MakeWorld
from faults.kit import PATIENCE, World, persistently, until
from perdure.model import Start, State

pytestmark = pytest.mark.anyio

RUNS = {"server": 10_000, "redis_server": 6_000}
KILLS = 20


class Server(Protocol):
    """A server of the test's own, as durable as they come."""

    @property
    def url(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill9(self) -> None: ...


@pytest.fixture(params=RUNS, ids=["postgres", "redis"])
def which(request: pytest.FixtureRequest) -> str:
    """The fixture of the server."""
    return request.param


@pytest.fixture
def victim(which: str, request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(which)


@pytest.fixture
async def world(make_world: MakeWorld, victim: Server) -> AsyncIterator[World]:
    world = make_world(f"{victim.url}?connect_timeout=2")
    yield world
    victim.start()  # so that everybody can say goodbye


async def test_thousands_of_runs_end_once_while_the_server_is_killed_twenty_times(
    world: World, victim: Server, which: str
) -> None:
    number_of_runs = RUNS[which]
    fleet = [await world.serving(lease=60, concurrency=50) for _ in range(2)]
    store = await world.app.client.store()

    async def start() -> None:
        for first in range(0, number_of_runs, 100):
            starts = [Start(f"r{n}", "leaf", "default", f'{{"n":{n}}}') for n in range(first, first + 100)]
            await persistently(lambda starts=starts: store.enqueue(starts))

    starting = asyncio.ensure_future(start())
    await until(lambda: world.log.count("ran"), "the first ones are there")
    watched = [asyncio.ensure_future(world.app.run(f"r{n}").result(timeout=600)) for n in range(0, 100, 10)]
    for number in range(KILLS):
        point = (number + 1) * number_of_runs // (KILLS + 1)  # in the work, not in time
        await until(lambda point=point: world.log.count("ran") >= point, f"{point} steps were begun")
        await asyncio.to_thread(victim.kill9)
        await asyncio.to_thread(victim.start)
    await starting
    await world.ended(number_of_runs, timeout=2 * PATIENCE)

    assert await world.states() == {State.SUCCEEDED: number_of_runs}
    assert {record.id: record.body for record in await world.records()} == {
        f"r{number}": str(number + 1) for number in range(number_of_runs)
    }
    assert await asyncio.gather(*watched) == [number + 1 for number in range(0, 100, 10)]
    # No worker died: what was begun was never begun again.
    assert world.log.times_ran() == Counter((f"r{number}", "add") for number in range(number_of_runs))
    assert world.log.ran_after_kept() == []
    assert [process.code for process in fleet] == [None, None]


async def test_workers_and_server_die_together(world: World, victim: Server) -> None:
    """The machine fails: what was kept is there afterwards, what was in hand begins again."""
    fleet = [await world.serving(lease=2, concurrency=20) for _ in range(2)]
    await world.flows.journey.start_many(range(200))
    for point in (100, 300):
        await until(lambda point=point: world.log.count("ran") >= point, f"{point} steps were begun")
        for process in fleet:
            process.kill()
        await asyncio.to_thread(victim.kill9)
        await asyncio.to_thread(victim.start)
        fleet = [await world.serving(lease=2, concurrency=20) for _ in range(2)]
    runs = 200 + len(range(0, 200, 7))
    await world.ended(runs)
    assert await world.states() == {State.SUCCEEDED: runs}
    assert world.log.ran_after_kept() == []
