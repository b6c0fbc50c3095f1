"""How connections are made: no more of them than are needed, and what becomes of those that nobody wants any more."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure.stores import open_store
from perdure.stores.base import Topic
from perdure.stores.postgres.connect import connect
from perdure.stores.postgres.url import parse_url
from servers.postgres import Postgres, migrated_postgres

pytestmark = pytest.mark.anyio


async def test_one_that_is_cut_off_at_any_turn_leaves_nothing_behind(postgres: Postgres) -> None:
    unseen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    location = parse_url(postgres.url)
    gc.collect()
    gc.freeze()  # what was there before need not be looked at each time
    for turns in range(1, 40):
        connecting = asyncio.ensure_future(connect(location))
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.wait([connecting])
        if not connecting.cancelled():  # It was quicker.
            connecting.result().terminate()
        del connecting
        gc.collect()
    gc.unfreeze()
    assert unseen == []


async def test_what_is_looked_at_first_is_looked_at_by_connections_that_stay(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A start of a program is a start of its connections, which take the most of it."""
    made: list[Any] = []
    make = asyncpg.connect

    async def counted(*args: Any, **options: Any) -> Any:
        made.append(await make(*args, **options))
        return made[-1]

    monkeypatch.setattr(asyncpg, "connect", counted)
    store = open_store(migrated_postgres(request.node.nodeid))
    await store.open()
    await store.now()
    assert len(made) == 1
    subscription = await store.subscribe(Topic.WORK, lambda: None)
    assert len(made) == 2 and not any(connection.is_closed() for connection in made)
    await subscription.close()
    await store.close()
    assert made[0].is_closed()


async def test_a_service_leads_to_its_database(
    monkeypatch: pytest.MonkeyPatch, postgres_url: str, tmp_path: Path
) -> None:
    parts = urlsplit(postgres_url)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    (tmp_path / "services").write_text(
        f"[shop]\nhost={parts.hostname}\nport={parts.port}\nuser={parts.username}\ndbname={parts.path[1:]}\n"
    )
    connection = await connect(parse_url("postgresql:///?service=shop"))
    assert await connection.fetchval("SELECT current_database()") == parts.path[1:]
    await connection.close()
