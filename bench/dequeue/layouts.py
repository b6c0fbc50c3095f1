"""The queues that are compared: each can be built, filled, and claimed from as its workers do it."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import asyncpg

from perdure.stores import open_store
from perdure.stores.base import Registration
from perdure.stores.exchange import Claim, Exchange, Settle, To
from perdure.stores.postgres import parse_url
from perdure.stores.postgres.exchange import Desk
from perdure.stores.postgres.pool import Connections
from perdure.stores.postgres.session import Session
from perdure.stores.postgres.sql import parse

_SQL = Path(__file__).parent / "sql"
_EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
LEASE = 5_000
"""Milliseconds, of workers that die."""
_DAY = 86_400_000


class Claimer(ABC):
    """Whoever claims, on a connection of its own."""

    @abstractmethod
    async def take(self, most: int) -> list[int]:
        """Claims runs, oldest first, by one call; returns their numbers."""

    @abstractmethod
    async def done(self) -> None:
        """Ends what was claimed, as workers do."""

    @abstractmethod
    async def buffers(self, most: int) -> int:
        """Claims as well; returns how many pages the server looked at."""

    @abstractmethod
    async def pid(self) -> int:
        """The server's process for this connection."""

    @abstractmethod
    async def close(self) -> None: ...


class Layout(ABC):
    """A queue in a database of its own."""

    name: str
    batch: int
    """The most runs that one call claims."""
    claim_index: str
    """The index that claims walk."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fills = parse((_SQL / self._folder() / "fill.sql").read_text(encoding="utf-8"), "perdure")

    @abstractmethod
    def _folder(self) -> str: ...

    @abstractmethod
    async def build(self) -> None: ...

    @abstractmethod
    async def claimer(self) -> Claimer: ...

    @abstractmethod
    async def pass_through(self, number: int) -> None:
        """Has runs come, be claimed and end."""

    async def look(self) -> None:
        """What a worker does every second, beside claiming."""
        return

    async def fill(self, what: str, number: int) -> bool:
        """Puts rows into the queue; False when it knows nothing of the kind."""
        if what not in self._fills:
            return False
        connection = await self.connect()
        try:
            for name in ("setup", what):
                if name in self._fills:
                    now = int(time.time() * 1000)
                    await connection.execute(self._fills[name].format(number=number, now=now, lease=LEASE))
        finally:
            await connection.close()
        return True

    async def run(self, statement: str, *args: object) -> list[Any]:
        """One statement, on a connection of its own."""
        connection = await self.connect()
        try:
            return await connection.fetch(statement, *args)
        finally:
            await connection.close()

    async def connect(self) -> Any:
        return await asyncpg.connect(self.url)

    async def index_sizes(self) -> dict[str, int]:
        """Bytes of each index of the table that claims walk."""
        rows = await self.run(
            "SELECT i.indexrelid::regclass::text, pg_relation_size(i.indexrelid) FROM pg_index AS i "
            "WHERE i.indrelid = (SELECT indrelid FROM pg_index WHERE indexrelid = $1::text::regclass)",
            self.claim_index,
        )
        return {name.rpartition(".")[2]: size for name, size in rows}


class Tasks(Layout):
    """One table, claimed from one task at a time: with the query of before, or with the fix."""

    batch = 1

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url)
        self.name = name
        self.claim_index = {"before": "task_pkey", "fix": "task_ready"}[name]

    def _folder(self) -> str:
        return "tasks"

    async def build(self) -> None:
        connection = await self.connect()
        for file in ("table", self.name):
            await connection.execute((_SQL / "tasks" / f"{file}.sql").read_text(encoding="utf-8"))
        await connection.close()

    async def claimer(self) -> Claimer:
        return _TaskClaimer(await self.connect())

    async def pass_through(self, number: int) -> None:
        for first in range(0, number, 1000):
            rows = await self.run(
                "INSERT INTO task (body) SELECT '{}' FROM generate_series($1::int, $2::int) RETURNING id",
                first + 1, min(first + 1000, number),
            )  # fmt: skip
            ids = [row[0] for row in rows]
            await self.run("UPDATE task SET lock_token = id::text, locked_until = $1 WHERE id = ANY ($2)", _DAY, ids)
            await self.run("DELETE FROM task WHERE id = ANY ($1)", ids)


class _TaskClaimer(Claimer):
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._sql = "SELECT id FROM dequeue($1, $2, 'default', 'worker')"
        self._taken: list[int] = []

    async def take(self, most: int) -> list[int]:
        rows = await self._connection.fetch(self._sql, int(time.time() * 1000), _DAY)
        self._taken += (row[0] for row in rows)
        return [row[0] for row in rows]

    async def done(self) -> None:
        await self._connection.execute("DELETE FROM task WHERE id = ANY ($1)", self._taken)
        self._taken.clear()

    async def pid(self) -> int:
        return self._connection.get_server_pid()

    async def buffers(self, most: int) -> int:
        return _buffers(await self._connection.fetch(_EXPLAIN + self._sql, int(time.time() * 1000), _DAY))

    async def close(self) -> None:
        await self._connection.close()


class Perdure(Layout):
    """The store as it is, by its own calls."""

    name = "perdure"
    batch = 64
    claim_index = "perdure.live_ready"

    def _folder(self) -> str:
        return "perdure"

    async def build(self) -> None:
        self._store = open_store(self.url)
        await self._store.migrate()
        await self._store.open()
        await self._store.register(_registration("another", ["nothing"]))

    async def connect(self) -> Any:
        return await asyncpg.connect(self.url, server_settings={"search_path": "perdure"})

    async def claimer(self) -> Claimer:
        return await PerdureClaimer.make(self.url)

    async def pass_through(self, number: int) -> None:
        for first in range(0, number, 10_000):
            for step in ("free", "claim_all", "end_all"):
                await self.fill(step, min(10_000, number - first))

    async def look(self) -> None:
        await self._store.reclaim()


class _Recording(Session):
    """Keeps what it was called with last."""

    last: tuple[object, ...] = ()

    async def call(self, name: str, *args: Any) -> Any:
        self.last = args
        return await super().call(name, *args)


class PerdureClaimer(Claimer):
    """A worker of the store."""

    def __init__(self, connections: Connections, db: _Recording, worker: int) -> None:
        self._connections = connections
        self._db = db
        self._desk = Desk(db, lambda: None)
        self._worker = worker
        self._serial = 0
        self._settles: list[Settle] = []

    @classmethod
    async def make(cls, url: str) -> PerdureClaimer:
        store = open_store(url)
        worker = await store.register(_registration("claimer", ["work"]))
        await store.close()
        location = parse_url(url + "?pool=1")
        connections = Connections(location)
        return cls(connections, _Recording(connections, location.schema, None), worker)

    async def take(self, most: int) -> list[int]:
        claims = await self._exchange(most, [])
        self._settles += (Settle(claim.ref, claim.token, To.SUCCEEDED, '{"done": true}') for claim in claims)
        return [int(claim.ref) for claim in claims]

    async def done(self) -> None:
        settles, self._settles = self._settles, []
        await self._exchange(0, settles)

    async def buffers(self, most: int) -> int:
        await self.take(most)
        args = list(self._db.last)
        self._serial += 1
        args[2] = self._serial
        await self.done()
        return _buffers(await self._db.rows(_EXPLAIN + self._db.sql["call"]["exchange"], *args))

    async def pid(self) -> int:
        return (await self._connections.call("SELECT pg_backend_pid()"))[0][0]

    async def close(self) -> None:
        await self._connections.close()

    async def _exchange(self, slots: int, settles: list[Settle]) -> list[Claim]:
        self._serial += 1
        done = await self._desk.exchange(
            Exchange(worker=self._worker, serial=self._serial, slots=slots, settles=settles)
        )
        return done.claims


def _registration(name: str, workflows: list[str]) -> Registration:
    return Registration(
        name=name, host="bench", pid=1, queues=["default"], workflows=workflows, concurrency=100_000,
        lease=_DAY, sessions=100,
    )  # fmt: skip


def _buffers(rows: list[Any]) -> int:
    plan = json.loads(rows[0][0])[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def make(name: str, url: str) -> Layout:
    """A layout by its name."""
    return Perdure(url) if name == "perdure" else Tasks(url, name)
