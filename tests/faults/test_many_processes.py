"""Many processes on one store: opened at once, starting and working side by side, killed while they start."""

from __future__ import annotations

import pytest

from faults.flows import journey_result
from faults.kit import World, until
from perdure.model import State

pytestmark = pytest.mark.anyio


def ending(runs: int) -> int:
    """How many runs journeys come to, with their children."""
    return runs + len(range(0, runs, 7))


async def test_eight_processes_open_a_new_store_at_once_and_work(world: World) -> None:
    workers = [world.worker(lease=10, concurrency=10) for _ in range(5)]
    clients = [world.spawn("start", {"many": 70, "times": 2}) for _ in range(3)]
    for client in clients:
        assert await client.ended() == 0, world.errors()
        assert world.log.count("started", pid=client.pid) == 2
    for worker in workers:
        await world.serves(worker)
    await world.ended(3 * 2 * ending(70))
    assert await world.states() == {State.SUCCEEDED: 3 * 2 * ending(70)}
    assert set(world.log.times_ran().values()) == {1}
    for worker in workers:
        worker.terminate()
    for worker in workers:
        assert await worker.ended() == 0
    assert await world.no_workers()


async def test_a_client_killed_while_it_starts_many_leaves_whole_runs_only(world: World) -> None:
    client = world.spawn("start", {"many": 100_000})

    async def begun() -> bool:
        return bool(await world.states())

    await until(begun, "the first runs are there")
    client.kill()
    assert world.log.count("started", pid=client.pid) == 0  # in the middle of it
    records = await world.records()
    assert 0 < len(records) < 100_000
    # Every run is whole: they are the first ones, each with its input, and each can be worked off.
    assert [record.input for record in records] == [f'{{"n":{number}}}' for number in range(len(records))]
    assert {record.state for record in records} == {State.QUEUED}
    for record in records[200:]:
        await world.app.run(record.id).cancel()
    await world.serving(lease=10, concurrency=50)
    for number, record in enumerate(records[:200]):
        assert await world.app.run(record.id).result(timeout=60) == journey_result(number)
