"""Calls to a server: from any loop, through errors, and what those are called."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from perdure.errors import PerdureError, RunNotFound, StoreError, StoreUnavailable
from perdure.stores.postgres import connect
from perdure.stores.postgres.errors import translate
from perdure.stores.postgres.pool import Connections
from perdure.stores.postgres.url import parse_url
from servers.postgres import Postgres, PostgresServer, migrated_postgres, own_server

PATIENCE = 30
PID = "SELECT pg_backend_pid() FROM pg_sleep(0.01)"


@pytest.fixture
async def connections(postgres_url: str) -> Any:
    made = Connections(parse_url(f"{postgres_url}?schema=public"))
    yield made
    await made.close()


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    server = own_server()
    server.start()
    yield server
    server.remove()


async def until_gone(postgres: Postgres, url: str) -> None:
    """Waits until nobody is connected to a database: the server takes a moment to notice a goodbye."""
    database = url.rpartition("/")[2]
    async with asyncio.timeout(PATIENCE):
        while postgres.run(f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}'"):
            await asyncio.sleep(0.01)


@pytest.mark.anyio
async def test_rows_and_values(connections: Connections) -> None:
    rows = await connections.call("SELECT * FROM unnest($1::bigint[], $2::text[]) AS t (n, s)", [1, 2], ["a", "b"])
    assert [(row["n"], row["s"]) for row in rows] == [(1, "a"), (2, "b")]
    assert (await connections.call("SELECT '{\"a\": 1}'::jsonb AS body"))[0]["body"] == '{"a": 1}'


@pytest.mark.anyio
async def test_sessions_have_settings_of_ours(postgres_url: str, postgres: Postgres) -> None:
    database = postgres_url.rpartition("/")[2]
    postgres.run(f"ALTER DATABASE {database} SET idle_session_timeout = '1h'")
    postgres.run(f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'")
    connections = Connections(parse_url(f"{postgres_url}?schema=a%20b&statement_timeout=1234&lock_timeout=77"))
    names = ("search_path", "statement_timeout", "lock_timeout", "application_name", "timezone", "idle_session_timeout")
    rows = await connections.call("SELECT current_setting(name) FROM unnest($1::text[]) AS name", list(names))
    assert [row[0] for row in rows] == ['"a b"', "1234ms", "77ms", "perdure", "UTC", "0"]
    isolation = await connections.call("SELECT current_setting('transaction_isolation')")
    assert isolation[0][0] == "read committed"
    await connections.close()


@pytest.mark.anyio
async def test_no_more_connections_than_the_pool_has(postgres: Postgres, postgres_url: str) -> None:
    connections = Connections(parse_url(f"{postgres_url}?pool=2"))
    calls = (connections.call("SELECT pg_backend_pid(), pg_sleep(0.001)") for _ in range(20))
    pids = {row[0] for rows in await asyncio.gather(*calls) for row in rows}
    assert len(pids) == 2
    await connections.close()
    await until_gone(postgres, postgres_url)


@pytest.mark.anyio
async def test_each_loop_has_connections_that_end_with_it(
    connections: Connections, postgres: Postgres, postgres_url: str
) -> None:
    def pid() -> int:
        return asyncio.run(connections.call("SELECT pg_backend_pid()"))[0][0]

    first, second = await asyncio.to_thread(pid), await asyncio.to_thread(pid)
    assert first != second
    await until_gone(postgres, postgres_url)


@pytest.mark.anyio
async def test_closing_closes_what_other_loops_have(postgres: Postgres, postgres_url: str) -> None:
    connections = Connections(parse_url(postgres_url))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(connections.call("SELECT 1"), loop).result(PATIENCE)
        await connections.close()
        await until_gone(postgres, postgres_url)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


@pytest.mark.anyio
async def test_closing_waits_for_what_is_under_way(postgres_url: str) -> None:
    connections = Connections(parse_url(postgres_url))
    await connections.call("SELECT 1")
    call = asyncio.create_task(connections.call("SELECT 7 FROM pg_sleep(0.2)"))
    await asyncio.sleep(0)
    await connections.close()
    assert (await call)[0][0] == 7


@pytest.mark.anyio
async def test_what_is_closed_takes_calls_when_it_is_opened_again(postgres: Postgres, postgres_url: str) -> None:
    connections = Connections(parse_url(postgres_url))
    assert (await connections.call("SELECT 1"))[0][0] == 1
    await connections.close()
    with pytest.raises(StoreError, match="is closed"):
        await connections.call("SELECT 1")
    await until_gone(postgres, postgres_url)
    connections.open()
    assert (await connections.call("SELECT 1"))[0][0] == 1
    await connections.close()


@pytest.mark.anyio
async def test_a_cancelled_call_leaves_the_connection_usable(connections: Connections) -> None:
    pid = (await connections.call("SELECT pg_backend_pid()"))[0][0]
    call = asyncio.create_task(connections.call("SELECT pg_sleep(60)"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await connections.call("SELECT pg_backend_pid()"))[0][0] == pid


@pytest.mark.anyio
async def test_a_call_is_not_sent_on_a_connection_that_was_ended(
    connections: Connections, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server, or something between, ends what is idle: nothing was asked by then, so nobody is told."""
    monkeypatch.setattr("perdure.stores.postgres.pool._FRESH", 0.0)
    pids = {row[0] for rows in await asyncio.gather(*(connections.call(PID) for _ in range(2))) for row in rows}
    for pid in pids:
        assert postgres.run(f"SELECT pg_terminate_backend({pid}, {PATIENCE * 1000})") == [(True,)]
    assert (await connections.call(PID))[0][0] not in pids


@pytest.mark.anyio
async def test_what_was_rolled_back_is_tried_again(connections: Connections) -> None:
    await connections.call("CREATE SEQUENCE tries")
    await connections.call(
        "CREATE FUNCTION often(code text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('tries') % 3 <> 0 THEN RAISE SQLSTATE '40P01'; END IF; RETURN currval('tries'); END $$"
    )
    assert (await connections.call("SELECT often('40P01')"))[0][0] == 3


@pytest.mark.anyio
async def test_a_lock_that_does_not_come_in_time(postgres_url: str) -> None:
    connections = Connections(parse_url(f"{postgres_url}?schema=public&lock_timeout=5"))
    await connections.call("CREATE TABLE held ()")
    await connections.call("CREATE SEQUENCE tries")
    await connections.call(
        "CREATE FUNCTION hold() RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM nextval('tries'); LOCK TABLE held; END $$"
    )
    holder = await connect.connect(connections.location)
    await holder.execute("BEGIN; LOCK TABLE held")
    with pytest.raises(StoreUnavailable, match="has a lock that somebody holds for long"):
        await connections.call("SELECT hold()")
    assert (await connections.call("SELECT last_value FROM tries"))[0][0] == 1  # It was waited for once.
    await holder.close()
    await connections.close()


@pytest.mark.anyio
async def test_a_changed_table_beneath_a_prepared_statement(connections: Connections) -> None:
    await connections.call("CREATE TABLE changing AS SELECT 1 AS a")
    assert len((await connections.call("SELECT * FROM changing"))[0]) == 1
    await connections.call("ALTER TABLE changing ADD b int, ALTER a TYPE text")
    assert len((await connections.call("SELECT * FROM changing"))[0]) == 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("statement", "kind", "says"),
    [
        ("SELECT * FROM nowhere", StoreError, "run `perdure migrate`"),
        ("SELECT nothing(1)", StoreError, "run `perdure migrate`"),
        ("SELECT 1 / 0", StoreError, "refused a value"),
        ("SELECT", None, ""),
        ("SELEC", StoreError, "failed: syntax error"),
        ("SELECT pg_sleep(60)", StoreUnavailable, "took longer for a call than statement_timeout"),
        ("DO $$ BEGIN RAISE SQLSTATE 'PD001' USING MESSAGE = 'there is no run x'; END $$", RunNotFound, "no run x"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", StoreUnavailable, "broke the connection off"),
        ("SET default_transaction_read_only = on", None, ""),
    ],
)
async def test_errors_have_names(postgres_url: str, statement: str, kind: type[PerdureError] | None, says: str) -> None:
    connections = Connections(parse_url(f"{postgres_url}?pool=1&statement_timeout=500"))
    if kind is None:
        await connections.call(statement)
    else:
        with pytest.raises(kind) as caught:
            await connections.call(statement)
        assert type(caught.value) is kind
        assert says in str(caught.value)
        assert (await connections.call("SELECT 1"))[0][0] == 1
    await connections.close()


@pytest.mark.anyio
async def test_a_server_that_turned_read_only(postgres_url: str) -> None:
    """As after a failover: the connection is dropped, and the next one may lead to the new primary."""
    connections = Connections(parse_url(f"{postgres_url}?schema=public&pool=1"))
    await connections.call("CREATE TABLE mine ()")
    await connections.call("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="takes no writes"):
        await connections.call("INSERT INTO mine DEFAULT VALUES")
    await connections.call("INSERT INTO mine DEFAULT VALUES")
    await connections.close()


@pytest.mark.anyio
async def test_ways_in_that_are_shut(own: PostgresServer) -> None:
    own.run("CREATE ROLE passworded; CREATE ROLE ann LOGIN PASSWORD 'right' IN ROLE passworded; CREATE TABLE a ()")
    ann = own.url.replace("postgres@", "ann:right@")

    async def said(url: str, statement: str = "SELECT 1") -> str:
        connections = Connections(parse_url(url))
        with pytest.raises(StoreError) as caught:
            await connections.call(statement)
        await connections.close()
        assert type(caught.value) is StoreError
        return str(caught.value)

    wrong = await said(own.url.replace("postgres@", "ann:wrong@"))
    assert "refused the password" in wrong and "wrong" not in wrong
    assert "does not let this user in" in await said(own.url.replace("postgres@", "nobody@"))
    assert "has no such database" in await said(own.url.removesuffix("postgres") + "nowhere")
    assert "does not permit that" in await said(f"{ann}?schema=public", "SELECT * FROM a")
    own.stop()
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await Connections(parse_url(own.url)).call("SELECT 1")


@pytest.mark.anyio
async def test_no_connection_left() -> None:
    server = own_server(settings={"max_connections": "4", "superuser_reserved_connections": "0"})
    try:
        server.start()
        connections = Connections(parse_url(f"{server.url}?pool=20"))
        calls = await asyncio.gather(
            *(connections.call("SELECT pg_sleep(0.2)") for _ in range(20)), return_exceptions=True
        )
        errors = {str(error).partition("(")[0] for error in calls if isinstance(error, StoreUnavailable)}
        assert any("has no connection left" in error for error in errors), errors
        await connections.close()
    finally:
        server.remove()


@pytest.mark.anyio
async def test_a_server_that_goes_and_comes_back(own: PostgresServer) -> None:
    connections = Connections(parse_url(own.url))
    await asyncio.gather(*(connections.call("SELECT pg_sleep(0.01)") for _ in range(4)))
    under_way = asyncio.create_task(connections.call("SELECT pg_sleep(60)"))
    await asyncio.sleep(0)
    own.kill9()
    with pytest.raises(StoreUnavailable):
        await under_way
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await connections.call("SELECT 1")
    own.start()
    for _ in range(5):
        assert (await connections.call("SELECT 1"))[0][0] == 1
    await connections.close()


@pytest.mark.anyio
async def test_a_server_that_says_nothing(own: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.stores.postgres.connect._GRACE", 0.5)
    monkeypatch.setattr("perdure.stores.postgres.pool._FAREWELL", 0.1)
    connections = Connections(parse_url(f"{own.url}?statement_timeout=500&connect_timeout=1"))
    await connections.call("SELECT 1")
    own.freeze()
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        await connections.call("SELECT 1")
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        await connections.call("SELECT 1")
    own.freeze(frozen=False)
    assert (await connections.call("SELECT 1"))[0][0] == 1
    await connections.close()


@pytest.mark.anyio
async def test_a_replica_is_refused(own: PostgresServer) -> None:
    own.stop()
    (own.data / "standby.signal").touch()
    own.start()
    with pytest.raises(StoreUnavailable, match="is a read replica"):
        await Connections(parse_url(own.url)).call("SELECT 1")


@pytest.mark.anyio
async def test_a_server_that_is_too_old(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.stores.postgres.connect._OLDEST", 99)
    with pytest.raises(StoreError, match="is too old: Perdure needs 99 or newer"):
        await Connections(parse_url(postgres_url)).call("SELECT 1")


def test_a_full_queue_of_notifications_is_no_fault_of_what_was_said() -> None:
    full = asyncpg.exceptions.ProgramLimitExceededError("too many notifications in the NOTIFY queue")
    error = translate(full, parse_url("postgresql://db/shop"))
    assert isinstance(error, StoreUnavailable) and "has no room for notifications" in str(error)


def test_what_a_worker_may_not_do_waits_for_its_rights(request: pytest.FixtureRequest) -> None:
    with psycopg.connect(migrated_postgres(request.node.nodeid)) as connection:
        connection.execute(
            "CREATE ROLE powerless; GRANT USAGE ON SCHEMA perdure TO powerless; SET search_path = perdure"
        )
        connection.execute("SET ROLE powerless")
        word = '{"what": "count", "lane": 1, "runs": 1}'
        assert connection.execute("SELECT take_in_said(1, %s::jsonb)", [word]).fetchone() == ("late",)
        connection.rollback()
