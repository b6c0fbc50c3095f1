"""The server of a store is away for half a minute, gone or hanging: work goes on within two seconds when it is back.

`PERDURE_TEST_OUTAGE` is how many seconds it is away. Both kinds of outage happen side by side, to a server each: there
is nothing to do but wait.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from faults.kit import World, persistently, until
from perdure.errors import StoreUnavailable
from perdure.model import Signal, WorkerRecord
from perdure.stores.base import Store, Topic
from servers import postgres, redis

pytestmark = pytest.mark.anyio

AWAY = float(os.environ.get("PERDURE_TEST_OUTAGE", "30"))
LEASE = 2 * AWAY
"""Renewed three times in its length: once at least while the server is away."""
LOOK = 0.02
SOON = 2.0 / LOOK
"""Looks, two seconds of them. On a machine that does other things as well these last longer, as all else does."""


class Server(Protocol):
    """A server of the test's own."""

    @property
    def url(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def freeze(self, *, frozen: bool = True) -> None: ...


@contextmanager
def _postgres() -> Generator[Server]:
    server = postgres.own_server(durable=True)
    try:
        server.start()
        server.run(postgres.store_schema(server.url))
        yield server
    finally:
        server.remove()


def _redis() -> AbstractContextManager[Server]:
    return redis.own_server(durable=True)


@pytest.mark.parametrize("kind", [_postgres, _redis], ids=["postgres", "redis"])
async def test_every_loop_works_again_within_two_seconds(
    kind: Callable[[], AbstractContextManager[Server]], tmp_path: Path
) -> None:
    with kind() as gone, kind() as hanging:
        looks = await asyncio.gather(
            outage(gone, tmp_path / "gone", gone.stop, gone.start),
            outage(hanging, tmp_path / "hanging", hanging.freeze, lambda: hanging.freeze(frozen=False)),
        )
    assert [look for each in looks for look in each.items() if look[1] > SOON] == []


@pytest.mark.parametrize("kind", [_postgres, _redis], ids=["postgres", "redis"])
async def test_a_server_that_hung_for_longer_than_a_lease_takes_no_runs_from_those_who_live(
    kind: Callable[[], AbstractContextManager[Server]], tmp_path: Path
) -> None:
    """What lay with it meanwhile is done first when it goes on: also to look whose lease has ended."""
    with kind() as server:
        world = World(f"{server.url}?connect_timeout=2", tmp_path)
        try:
            fleet = [await world.serving(lease=1.5, concurrency=5) for _ in range(2)]
            runs = await world.flows.holding.start_many([("gate", False)] * 8)
            await until(lambda: world.log.count("ran") == 8, "the runs are at work")
            server.freeze()
            await asyncio.sleep(3)  # twice the lease
            server.freeze(frozen=False)
            store = await world.app.client.store()
            await until(lambda: _all_renewed(store), "both have their leases again")
            looked = [worker.lease_until for worker in await store.workers()]
            await until(lambda: _all_renewed(store, after=max(looked)), "they have looked for dead ones since")
            world.open_gate("gate")
            assert {await run.result() for run in runs} == {process.pid for process in fleet}
            await world.all_once(8)
        finally:
            server.freeze(frozen=False)
            await world.close()


async def _all_renewed(store: Store, *, after: int = 0) -> bool:
    return [worker.lease_until > after for worker in await store.workers()] == [True, True]


async def outage(server: Server, directory: Path, begin: Callable[[], None], end: Callable[[], None]) -> dict[str, int]:
    """Has a server go away under load and come back, and all work end; returns how many looks it took until each loop
    was seen to work again."""
    directory.mkdir()
    world = World(f"{server.url}?connect_timeout=2", directory)
    try:
        return await _outage(world, begin, end)
    finally:
        server.freeze(frozen=False)
        server.start()  # so that everybody can say goodbye
        await world.close()


async def _outage(world: World, begin: Callable[[], None], end: Callable[[], None]) -> dict[str, int]:
    worker = await world.serving(lease=LEASE, concurrency=30, every=0.5)
    held, asking = await world.flows.holding.start("gate"), await world.flows.asking.start()
    store, heard = await world.app.client.store(), asyncio.Event()
    subscription = await store.subscribe(Topic.ENDED, heard.set)
    result = asyncio.ensure_future(held.result())
    await until(lambda: world.log.count("ran", held.id), "the run is at work")
    await until(lambda: _fired(world), "the schedule has fired")
    runs = await world.flows.journey.start_many(range(100))
    await until(lambda: world.log.count("ran") > 100, "the runs are at work")
    (before,) = await store.workers()

    await asyncio.to_thread(begin)
    world.open_gate("gate")
    urgent = world.flows.leaf.options(id="urgent", priority=-1)
    start = asyncio.ensure_future(persistently(lambda: urgent.start(1)))
    numbers = [Signal(f"number-{number}", asking.id, "number", str(number)) for number in range(3)]
    signal = asyncio.ensure_future(persistently(lambda: store.signal(numbers[0])))
    await asyncio.sleep(AWAY)  # the outage itself
    at_work, fired = world.log.count("ran"), _fired(world)
    assert not (result.done() or start.done() or signal.done())
    heard.clear()
    await asyncio.to_thread(end)

    looks = await _looks(
        {
            "the exchange": lambda: world.log.count("ran") > at_work,
            "the lease": lambda: _renewed(store, before),
            "the schedule": lambda: _fired(world) > fired,
            "wake-ups": lambda: heard.is_set() and _hears(world),
            "a result that is waited for": result.done,
            "a start": start.done,
            "a signal": signal.done,
        }
    )
    assert await result == worker.pid
    assert await (await start).result() == 2
    for number in numbers[1:]:
        await store.signal(number)
    assert await asking.result() == [0, 1, 2]
    for run in runs:
        await run.result()
    await subscription.close()
    await world.app.schedules.remove("leaves")
    await world.all_once(sum((await world.states()).values()))
    assert worker.code is None
    return looks


def _fired(world: World) -> int:
    return sum(run_id.startswith("leaves") for _, run_id, *_ in world.log.find("ran"))


def _hears(world: World) -> bool:
    """Whether the worker has wake-ups again, if it had none."""
    said = world.errors()
    return said.count("store:no wake-ups from") == said.count("store:wake-ups from")


async def _renewed(store: Store, before: WorkerRecord) -> bool:
    try:
        return [worker.lease_until > before.lease_until for worker in await store.workers()] == [True]
    except StoreUnavailable:
        return False


async def _looks(signs: Mapping[str, Callable[[], bool | Awaitable[bool]]]) -> dict[str, int]:
    """By sign, how many looks it took until it was seen."""
    took: dict[str, int] = {}
    looks = itertools.count()

    async def all_seen() -> bool:
        look = next(looks)
        for what, sign in signs.items():
            if what not in took:
                seen: Any = sign()
                if await seen if inspect.isawaitable(seen) else seen:
                    took[what] = look
        return len(took) == len(signs)

    try:
        await until(all_seen, "every loop works")
    except AssertionError as error:
        raise AssertionError(f"{error}; there are {took}") from None
    return took
