"""Leases beside a transaction that holds the one lock of a file."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure.stores.base import Registration
from perdure.stores.shared import leases
from perdure.stores.sqlite import SqliteStore, parse_url
from perdure.stores.sqlite.executor import Transaction

pytestmark = pytest.mark.anyio

HOUR = 3_600_000


async def test_a_long_transaction_gives_its_time_back_to_those_who_live(tmp_path: Path) -> None:
    store = SqliteStore(parse_url(f"sqlite:///{tmp_path}/a.db"))
    await store.open()

    alive, dead = [
        await store.register(
            Registration(name=name, host="h", pid=1, queues=["q"], workflows=["w"], concurrency=1, lease=10_000)
        )
        for name in ("alive", "dead")
    ]

    def ends(transaction: Transaction) -> dict[int, int]:
        return dict(transaction.connection.execute("SELECT id, lease_until FROM worker").fetchall())

    def take_an_hour(transaction: Transaction) -> None:
        transaction.began -= 3600
        transaction.change(
            "UPDATE worker SET lease_until = lease_until - :h WHERE id <> :a", {"h": 2 * HOUR, "a": alive}
        )

    try:
        before = await store._write(ends)
        await store._write(take_an_hour)
        after = await store._write(ends)
        assert after[dead] == before[dead] - 2 * HOUR
        assert HOUR <= after[alive] - before[alive] < 2 * HOUR
        assert (await store.reclaim()).count == 0
        assert [each.name for each in await store.workers()] == ["alive"]
    finally:
        await store.close()


async def test_who_waited_for_the_lock_takes_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could renew while somebody held it: those who live do so before the next look."""
    monkeypatch.setattr(leases, "HELD_UP", 50)
    store = SqliteStore(parse_url(f"sqlite:///{tmp_path}/a.db"))
    await store.open()
    try:
        await store.register(
            Registration(name="late", host="h", pid=1, queues=["q"], workflows=["w"], concurrency=1, lease=1)
        )
        with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            reclaiming = asyncio.create_task(store.reclaim(await store.now()))
            await asyncio.sleep(0.1)  # the time that it is held
            foreign.execute("COMMIT")
            assert (await reclaiming).late
            held = foreign.execute("SELECT count(*) FROM worker").fetchone()
            await store.reclaim()
            assert (held, foreign.execute("SELECT count(*) FROM worker").fetchone()) == ((1,), (0,))
    finally:
        await store.close()
