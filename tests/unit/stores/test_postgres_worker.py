"""Taking runs back from workers that died, while the server is at their last words still."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from perdure import App, sleep
from perdure.errors import StoreError
from perdure.model import Start, State
from perdure.stores import open_store
from perdure.stores.base import Registration
from perdure.stores.exchange import Exchange
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres.url import parse_url
from servers.postgres import Postgres, store_schema

PATIENCE = 30


@pytest.fixture
async def store(postgres: Postgres, postgres_url: str) -> AsyncIterator[PostgresStore]:
    postgres.run(store_schema(postgres_url), url=postgres_url)
    store = PostgresStore(parse_url(postgres_url))
    await store.open()
    yield store
    await store.close()


async def worker(store: PostgresStore, name: str, lease: int) -> int:
    return await store.register(
        Registration(name=name, host="", pid=0, queues=["q"], workflows=["f"], concurrency=1, lease=lease)
    )


def claim(connection: psycopg.Connection, worker: int) -> None:
    """What an exchange does; it is over when the transaction is."""
    connection.execute("SELECT id FROM perdure.worker WHERE id = %s FOR NO KEY UPDATE", [worker])
    connection.execute(
        "UPDATE perdure.live SET state = 'running', worker = %s, token = 99 WHERE token IS NULL", [worker]
    )


async def waits(postgres: Postgres, url: str) -> None:
    """Until somebody waits for a lock in a database."""
    database = url.rpartition("/")[2]
    async with asyncio.timeout(PATIENCE):
        while not postgres.run(
            f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
        ):
            await asyncio.sleep(0.01)


@pytest.mark.anyio
async def test_burying_waits_for_the_last_exchange_and_takes_what_it_claimed(
    store: PostgresStore, postgres: Postgres, postgres_url: str
) -> None:
    dead = await worker(store, "dead", 600_000)
    await store.enqueue([Start("a", "f", "q", "1")])
    assert len((await store.exchange(Exchange(dead, 1, slots=1))).claims) == 1
    await store.enqueue([Start("b", "f", "q", "1")])
    with psycopg.connect(postgres_url) as exchange:
        claim(exchange, dead)
        burying = asyncio.create_task(store.bury("dead"))
        await waits(postgres, postgres_url)
    assert await burying == 2
    records = [await store.load(run) for run in ("a", "b")]
    assert [record and (record.state, record.worker) for record in records] == [(State.QUEUED, None)] * 2
    assert await store.workers() == []
    assert await store.bury("dead") == 0


@pytest.mark.anyio
async def test_reclaiming_waits_for_nobody(store: PostgresStore, postgres_url: str) -> None:
    busy, dead = await worker(store, "busy", 0), await worker(store, "dead", 0)
    await store.enqueue([Start("a", "f", "q", "1"), Start("b", "f", "q", "1")])
    await store.exchange(Exchange(dead, 1, slots=1))
    with psycopg.connect(postgres_url) as exchange:
        claim(exchange, busy)
        async with asyncio.timeout(PATIENCE):
            assert (await store.reclaim()).count == 1
    assert (await store.reclaim()).count == 1
    assert await store.workers() == []


@pytest.mark.anyio
async def test_a_worker_does_not_wait_behind_starts_that_wait(
    store: PostgresStore, postgres: Postgres, postgres_url: str
) -> None:
    """Starts of its steps, of ids that a transaction of the application has: they take all connections of the pool."""
    few = PostgresStore(parse_url(f"{postgres_url}?pool=2&lock_timeout=0&statement_timeout=0"))
    await store.enqueue([Start("z", "f", "q", "1")])
    with psycopg.connect(postgres_url) as application:
        application.execute("SELECT perdure.start('f', '{}', id => 'a', queue => 'q')")
        starts = [asyncio.create_task(few.enqueue([Start("a", "f", "q", "{}")])) for _ in range(3)]
        await waits(postgres, postgres_url)
        async with asyncio.timeout(PATIENCE):
            mine = await worker(few, "mine", 600_000)
            assert [claim.id for claim in (await few.exchange(Exchange(mine, 1, slots=1))).claims] == ["z"]
            assert (await few.reclaim()).count == 0
            await few.retire(mine)
            assert await few.bury("mine") == 0
        assert not any(start.done() for start in starts)
    assert [[each.existed for each in await start] for start in starts] == [[True]] * 3
    await few.close()


def granted() -> list[str]:
    """What the documentation says to grant."""
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "postgresql.md").read_text(encoding="utf-8")
    return re.findall(r"^(?:GRANT|ALTER DEFAULT PRIVILEGES).*;$", page, re.MULTILINE)


@pytest.fixture
def shop(postgres: Postgres, postgres_url: str) -> Iterator[str]:
    """The URL for a role that may do nothing yet."""
    postgres.run("CREATE ROLE shop LOGIN")
    parts = urlsplit(postgres_url)
    yield urlunsplit(parts._replace(netloc=f"shop@{parts.netloc.rpartition('@')[2]}"))
    postgres.run("DROP OWNED BY shop", url=postgres_url)
    postgres.run("DROP ROLE shop")


@pytest.mark.anyio
async def test_a_role_with_the_rights_of_the_documentation(
    store: PostgresStore, postgres: Postgres, postgres_url: str, shop: str
) -> None:
    rights = granted()
    assert len(rights) == 7
    for right in rights:
        postgres.run(right, url=postgres_url)
    app = App(shop, queues=["default"])

    @app.schedule(every=3600, args=(1,))
    @app.workflow
    async def double(n: int) -> int:
        await sleep(0.01)
        return 2 * n

    app.retain(age=timedelta(days=1))
    with psycopg.connect(shop) as application:
        application.execute("SELECT perdure.start('double', '{\"n\": 4}', id => 'four', group_key => 'g')")
    async with app, app.worker():
        assert await double.options(group="g", unique="u", labels={"a": "b"}).run(2) == 4
        assert await app.run("four").result(PATIENCE) == 8
        await app.run("four").delete()
    assert [finding.what for finding in await open_store(shop).check() if "lacks" in finding.what] == []


@pytest.mark.anyio
@pytest.mark.parametrize("left_out", range(3))
async def test_a_worker_whose_user_lacks_a_right_does_not_start(
    store: PostgresStore, postgres: Postgres, postgres_url: str, shop: str, left_out: int
) -> None:
    for right in granted()[:3]:
        postgres.run(right, url=postgres_url)
    postgres.run(
        ["REVOKE INSERT ON perdure.run FROM shop", "REVOKE SELECT ON SEQUENCE perdure.topology FROM shop",
         "REVOKE EXECUTE ON FUNCTION perdure.tell_work FROM PUBLIC"][left_out],
        url=postgres_url,
    )  # fmt: skip
    weak = PostgresStore(parse_url(shop))
    await weak.open()
    with pytest.raises(StoreError, match=r"can't be worked on by this user, who lacks .*: GRANT .* TO it"):
        await worker(weak, "weak", 600_000)
    await weak.close()
