"""Through a PgBouncer in transaction mode, where each call may come to another session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from perdure.errors import StoreError
from perdure.stores import open_store
from perdure.stores.base import Topic
from perdure.stores.postgres import migrate
from perdure.stores.postgres.connect import Way, find_way
from perdure.stores.postgres.keeper import LeaseKeeper
from perdure.stores.postgres.listen import channel, hears, subscribe
from perdure.stores.postgres.pool import Connections
from perdure.stores.postgres.sql import Migration
from perdure.stores.postgres.url import Location, parse_url
from servers.pgbouncer import PROGRAM, pgbouncer, version
from servers.postgres import Postgres

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")

FIRST = Migration(
    1,
    "0001_first",
    """BEGIN;
CREATE TABLE migration (
    version int PRIMARY KEY, name text NOT NULL, oldest int NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE worker (id bigint PRIMARY KEY);
CREATE FUNCTION renew(clock bigint, worker bigint, lease bigint) RETURNS boolean LANGUAGE sql
SET search_path FROM CURRENT
RETURN EXISTS (SELECT FROM worker w WHERE w.id = $2);
INSERT INTO worker VALUES (7);
INSERT INTO migration (version, name, oldest) VALUES (1, '0001_first', 1);
COMMIT;
""",
)


@pytest.fixture
def through(postgres_url: str) -> Iterator[Location]:
    with pgbouncer(postgres_url) as url:
        yield parse_url(url)


@pytest.mark.anyio
async def test_the_pooler_is_noticed(through: Location) -> None:
    way, connection = await find_way(through)
    await connection.close()
    assert way is (Way.POOLED if version() >= (1, 21) else Way.POOLED_PLAIN)
    # The probe leaves nothing behind in the sessions that others use next.
    rows = await Connections(through).call("SELECT name FROM pg_prepared_statements WHERE name LIKE 'perdure%'")
    assert rows == []


@pytest.mark.anyio
async def test_calls_side_by_side_from_many_clients(through: Location) -> None:
    await migrate.migrate(through, [FIRST])
    clients = [Connections(through) for _ in range(5)]
    await migrate.verify(through, clients[0].call, [FIRST])
    calls = (
        client.call(f"SELECT {n} + $1::int, id FROM perdure.worker, pg_sleep(0.001)", i)
        for i in range(20)
        for n, client in enumerate(clients)
    )
    found = {rows[0][0] for rows in await asyncio.gather(*calls)}
    assert found == set(range(24))
    settings = await clients[0].call("SELECT current_setting('search_path'), current_setting('statement_timeout')")
    assert tuple(settings[0]) == ('"$user", public', "0")  # Sessions that others use too are left as they are.
    for client in clients:
        await client.close()


@pytest.mark.anyio
async def test_a_lease_is_kept(through: Location) -> None:
    await migrate.migrate(through, [FIRST])
    keeper = LeaseKeeper(through, 7, 3000)
    assert await asyncio.to_thread(keeper.renew)
    assert await asyncio.to_thread(keeper.renew)
    keeper.close()


@pytest.mark.anyio
async def test_wake_ups_take_a_way_of_their_own(
    through: Location, postgres_url: str, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    assert not await hears(through)
    deaf = await subscribe(through, Topic.WORK, lambda: None)
    assert "give its own URL as ?listen=" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    await deaf.close()
    woken = asyncio.Event()
    location = parse_url(f"{through.url}?listen={postgres_url}")
    assert await hears(location)
    subscription = await subscribe(location, Topic.WORK, woken.set)
    postgres.run(f"SELECT pg_notify('{channel('perdure')}', 'w')", url=through.url)
    async with asyncio.timeout(30):
        await woken.wait()
    await subscription.close()


@pytest.mark.anyio
async def test_another_isolation_by_default_is_refused(postgres_url: str, postgres: Postgres) -> None:
    database = postgres_url.rpartition("/")[2]
    postgres.run(f"ALTER DATABASE {database} SET default_transaction_isolation = 'repeatable read'")
    await open_store(postgres_url).migrate()
    direct = open_store(postgres_url)  # Where sessions are ours, they have what they need.
    await direct.open()
    await direct.close()
    with pgbouncer(postgres_url) as url:
        store = open_store(url)
        with pytest.raises(StoreError, match="SET default_transaction_isolation = 'read committed'"):
            await store.open()
        await store.close()
