"""The stores that faults are tried on. A new store joins with one entry in `STORES`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from faults.flows import GATES, LOG
from faults.kit import World
from servers.postgres import PostgresServer, migrated_postgres, own_server, store_schema
from servers.redis import RedisServer, redis_url
from servers.redis import own_server as own_redis

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda directory: f"sqlite:///{directory}/store/perdure.db",
    "postgres": lambda directory: migrated_postgres(str(directory)),
    "redis": lambda directory: redis_url(str(directory)),
}
"""What gives the URL of an empty store."""

MakeWorld: TypeAlias = Callable[[str], World]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeWorld]:
    """Makes the world of a test on a store, given its URL: once for each test."""
    worlds: list[World] = []

    def make(url: str) -> World:
        assert not worlds
        (tmp_path / "store").mkdir()
        worlds.append(World(url, tmp_path))
        monkeypatch.setenv(LOG, str(worlds[0].log.path))
        monkeypatch.setenv(GATES, str(worlds[0].gates))
        return worlds[0]

    yield make
    for world in worlds:
        await world.close()


@pytest.fixture
async def world(make_world: MakeWorld, kind: str, tmp_path: Path) -> World:
    """An empty store, and the processes on it."""
    return make_world(STORES[kind](tmp_path))


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the test alone, as durable as they come, with an empty store in its database."""
    server = own_server(durable=True)
    try:
        server.start()
        server.run(store_schema(server.url))
        yield server
    finally:
        server.remove()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A Redis or Valkey for the test alone, as durable as they come."""
    with own_redis(durable=True) as server:
        yield server
