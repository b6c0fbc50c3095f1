"""The stores under test. A new store joins the suite with one entry in `STORES`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from conformance.kit import ManualClock, Worker, number_anew, worker
from perdure.stores import open_store
from perdure.stores.base import Store
from servers.postgres import brief_postgres
from servers.redis import cluster_url, redis_url

MakeStore: TypeAlias = Callable[[], Awaitable[Store]]


@dataclass(frozen=True)
class Backend:
    """A kind of store. `open` called twice with one directory opens one database twice, as two processes would."""

    open: Callable[[Path, ManualClock], Store]
    shared: bool = True
    """Whether a database can be opened twice."""
    examples: int = 100
    """How many examples of the model-based test: fewer where a new database takes its time, or where the statements are
    those of another kind."""
    open_one: Callable[[Path, ManualClock], Store] | None = None
    """Opens a database of one partition, where `open` opens one of several."""

    @property
    def in_one_partition(self) -> Backend:
        """The same kind, without partitions."""
        return self if self.open_one is None else replace(self, open=self.open_one)


def _postgres(path: Path, clock: ManualClock) -> Store:
    return open_store(brief_postgres(str(path)), now=clock.now)


def _redis(path: Path, clock: ManualClock) -> Store:
    return open_store(redis_url(str(path)), now=clock.now)


def _redis_cluster(path: Path, clock: ManualClock, partitions: int = 3) -> Store:
    return open_store(cluster_url(str(path), partitions), now=clock.now)


STORES = {
    "sqlite": Backend(lambda path, clock: open_store(f"sqlite:///{path}/perdure.db", now=clock.now)),
    "sqlite-memory": Backend(
        lambda _, clock: open_store("sqlite:///:memory:", now=clock.now), shared=False, examples=25
    ),
    "postgres": Backend(_postgres, examples=25),
    "redis": Backend(_redis),
    "redis-cluster": Backend(_redis_cluster, examples=25, open_one=partial(_redis_cluster, partitions=1)),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=STORES)
def backend(request: pytest.FixtureRequest) -> Backend:
    """The store under test: of several partitions, where it has such, unless the test is marked `one_partition(why)`,
    since docs/how-to/redis-cluster.md promises what it asks for within one alone."""
    backend: Backend = STORES[request.param]
    return backend if request.node.get_closest_marker("one_partition") is None else backend.in_one_partition


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def make_store(backend: Backend, tmp_path: Path, clock: ManualClock) -> AsyncIterator[MakeStore]:
    """Opens the test's database; each further call opens it once more."""
    opened: list[Store] = []
    number_anew()

    async def make() -> Store:
        if opened and not backend.shared:
            pytest.skip("this store can't be opened twice")
        store = backend.open(tmp_path, clock)
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in reversed(opened):
        await store.close()


@pytest.fixture
async def store(make_store: MakeStore) -> Store:
    return await make_store()


@pytest.fixture
async def other(store: Store, make_store: MakeStore) -> Store:
    """The same database, opened by another process."""
    return await make_store()


@pytest.fixture
async def ada(store: Store) -> Worker:
    """A worker that serves every lane."""
    return await worker(store)


@pytest.fixture
async def bob(store: Store) -> Worker:
    """Another worker that serves every lane."""
    return await worker(store)
