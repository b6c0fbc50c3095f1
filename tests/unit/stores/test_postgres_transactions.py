"""Starts, signals and cancelling in a transaction of the application, by the driver that it uses."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from perdure import App, State, step, wait_signal
from perdure.errors import (
    IdConflict,
    InvalidInput,
    PerdureError,
    RunFailed,
    RunNotFound,
    StoreError,
    StoreUnavailable,
)
from perdure.stores.postgres import parse_url
from perdure.stores.postgres.migrate import script
from perdure.stores.postgres.sql import migrations
from servers.drivers import ASYNC, SYNC
from servers.postgres import Postgres, migrated_postgres

ORDERS = "CREATE TABLE orders (id int)"
ORDER = "INSERT INTO orders VALUES (7)"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    url = migrated_postgres(request.node.nodeid)
    with psycopg.connect(url) as connection:
        connection.execute(ORDERS)
    return url


def make(url: str) -> App:
    app = App(url)

    @app.workflow
    async def fulfil(order: int) -> int:
        return order * 2

    @app.workflow
    async def hear() -> Any:
        return await wait_signal("go")

    return app


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = make(url)
    yield app
    app.close().wait()


@pytest.fixture
async def here(url: str) -> AsyncIterator[App]:
    app = make(url)
    yield app
    await app.close()


def orders(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM orders").fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("driver", SYNC)
def test_a_start_is_part_of_a_blocking_transaction(driver: str, app: App, url: str) -> None:
    fulfil = app.workflows["fulfil"]

    def fail() -> None:
        with SYNC[driver](url) as own:
            own.run(ORDER)
            fulfil.options(id="no", transaction=own.connection).start(7).wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert orders(url) == 0
    with pytest.raises(RunNotFound):
        app.run("no").status().wait()
    with SYNC[driver](url) as own:
        own.run(ORDER)
        run = fulfil.options(id="yes", transaction=own.connection, labels={"by": driver}).start(7).wait()
        many = fulfil.options(transaction=own.connection).start_many([1, 2, 3]).wait()
        app.run("yes").signal("go", 1, transaction=own.connection).wait()
        assert app.run("yes").cancel(transaction=own.connection).wait() is State.QUEUED
        with pytest.raises(RunNotFound):
            run.status().wait()
    assert orders(url) == 1
    assert not run.existed and run.status().wait().state is State.QUEUED
    assert len({each.id for each in many}) == 3
    with SYNC[driver](url) as own:
        assert fulfil.options(id="yes", transaction=own.connection).start(7).wait().existed
        with pytest.raises(IdConflict):
            fulfil.options(id="yes", transaction=own.connection).start(8).wait()
        own.run(ORDER)  # Nothing was written that went wrong.
    assert orders(url) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("driver", ASYNC)
async def test_a_start_is_part_of_an_async_transaction(driver: str, here: App, url: str) -> None:
    fulfil, hear = here.workflows["fulfil"], here.workflows["hear"]

    async def fail() -> None:
        async with ASYNC[driver](url) as own:
            await own.run(ORDER)
            await fulfil.options(id="no", transaction=own.connection).start(7)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert orders(url) == 0
    with pytest.raises(RunNotFound):
        await here.run("no").status()
    async with here.worker():
        async with ASYNC[driver](url) as own:
            await own.run(ORDER)
            run = await fulfil.options(transaction=own.connection).start(7)
            many = await fulfil.options(transaction=own.connection).start_many(range(1200))
            heard = await hear.options(transaction=own.connection).start()
            await heard.signal("go", "said", transaction=own.connection)
            cancelled = await hear.options(id="c", transaction=own.connection).start()
            await cancelled.cancel(transaction=own.connection)
        assert orders(url) == 1
        assert await run.result(10) == 14
        assert await many[-1].result(20) == 2398
        assert await heard.result(10) == "said"
        while (await cancelled.status()).state is not State.CANCELLED:
            await asyncio.sleep(0.01)


@pytest.mark.anyio
async def test_a_connection_whose_cursors_are_others(here: App, url: str) -> None:
    fulfil = here.workflows["fulfil"]
    async with await psycopg.AsyncConnection.connect(url, cursor_factory=psycopg.AsyncRawCursor) as connection:
        assert not (await fulfil.options(id="a", transaction=connection).start(7)).existed
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        assert (await fulfil.options(id="a", transaction=connection).start(7)).existed


@pytest.mark.anyio
async def test_an_error_of_ours_is_ours_and_the_others_are_the_drivers(here: App, url: str) -> None:
    for opened in (ASYNC["asyncpg"], ASYNC["psycopg"], ASYNC["sqlalchemy-asyncpg-session"]):
        with pytest.raises(RunNotFound, match=r"^there is no run 'nobody' in this store$"):
            async with opened(url) as own:
                await here.run("nobody").signal("go", transaction=own.connection)
    async with ASYNC["asyncpg"](url) as own:
        with pytest.raises(asyncpg.UndefinedTableError):
            await own.run("SELECT 1 FROM nothing")
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await here.workflows["fulfil"].options(transaction=own.connection).start(1)


@pytest.mark.parametrize("driver", SYNC)
def test_an_error_of_ours_by_any_driver(driver: str, app: App, url: str) -> None:
    with pytest.raises(RunNotFound, match=r"^there is no run 'nobody' in this store$"), SYNC[driver](url) as own:
        app.run("nobody").signal("go", transaction=own.connection).wait()


@pytest.mark.anyio
async def test_it_has_to_be_the_stores_own_database(here: App, url: str, postgres: Postgres) -> None:
    fulfil = here.workflows["fulfil"]
    for other, reason in (
        (postgres.database(), "where schema 'perdure' is not there"),
        (migrated_postgres("another one"), "the connection leads to another database than the store's"),
    ):
        with pytest.raises(StoreError, match=reason):
            async with ASYNC["asyncpg"](other) as own:
                await fulfil.options(transaction=own.connection).start(1)


@pytest.mark.anyio
async def test_the_stores_own_database_is_another_one_by_now(postgres: Postgres) -> None:
    """As after a restore, or a move to another server."""
    url = postgres.database()
    name = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script(parse_url(url), migrations()).encode())
    app = make(url)
    fulfil = app.workflows["fulfil"]

    async def start() -> None:
        async with ASYNC["asyncpg"](url) as own:
            await fulfil.options(transaction=own.connection).start(1)

    await start()
    postgres.run(f"CREATE DATABASE {name}_restored TEMPLATE {name}")
    postgres.run(f"ALTER DATABASE {name} RENAME TO {name}_old")
    postgres.run(f"ALTER DATABASE {name}_restored RENAME TO {name}")
    with pytest.raises(StoreUnavailable, match="is in another database since it was last asked"):
        await start()
    await start()
    await app.close()


@pytest.mark.anyio
async def test_a_store_that_is_not_there(url: str) -> None:
    app = make("postgresql://postgres@127.0.0.1:1/nowhere")
    with pytest.raises(StoreUnavailable):
        async with ASYNC["asyncpg"](url) as own:
            await app.workflows["fulfil"].options(transaction=own.connection).start(1)


def test_another_store_can_not() -> None:
    app = make("sqlite://")
    with pytest.raises(StoreError, match="transaction= needs a store on PostgreSQL"):
        app.workflows["fulfil"].options(transaction=sqlite3.connect(":memory:")).start(1)


def test_what_is_no_connection_is_refused(app: App, url: str) -> None:
    fulfil = app.workflows["fulfil"]
    engine = create_engine("sqlite://")
    with pytest.raises(InvalidInput, match="takes a connection or session with a transaction"):
        fulfil.options(transaction=engine).start(1)
    with pytest.raises(InvalidInput, match="this one is to sqlite"), Session(engine) as session:
        fulfil.options(transaction=session).start(1)
    with (
        psycopg.connect(url, autocommit=True) as connection,
        pytest.raises(InvalidInput, match="no transaction open: it is in autocommit mode"),
    ):
        fulfil.options(transaction=connection).start(1)
    with SYNC["psycopg"](url) as own:
        start = fulfil.options(transaction=own.connection)
        with pytest.raises(InvalidInput, match="it can't end before you commit"):
            start.run(1)
        with pytest.raises(InvalidInput, match="start_many can be part of yours"):
            start.start_batch([1])


@pytest.mark.anyio
@pytest.mark.parametrize("of_engine", [True, False])
async def test_sqlalchemy_in_autocommit_mode_is_refused(of_engine: bool, here: App, url: str) -> None:
    fulfil = here.workflows["fulfil"]
    way: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if of_engine else {}
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), **way)
    other = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"), **way)
    if not of_engine:
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        other = other.execution_options(isolation_level="AUTOCOMMIT")
    with engine.begin() as connection, pytest.raises(InvalidInput, match="in autocommit mode"):
        fulfil.options(transaction=connection).start(1)
    with Session(engine) as session, pytest.raises(InvalidInput, match="in autocommit mode"):
        fulfil.options(transaction=session).start(1)
    async with other.begin() as suspending:
        with pytest.raises(InvalidInput, match="in autocommit mode"):
            fulfil.options(transaction=suspending).start(1)
    async with AsyncSession(other) as suspending:
        with pytest.raises(InvalidInput, match="in autocommit mode"):
            fulfil.options(transaction=suspending).start(1)
    engine.dispose()
    await other.dispose()


@pytest.mark.anyio
async def test_asyncpg_without_a_transaction_is_refused(here: App, url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        with pytest.raises(InvalidInput, match="no transaction open"):
            here.workflows["fulfil"].options(transaction=connection).start(1)
    finally:
        await connection.close()


@pytest.mark.anyio
async def test_an_async_connection_is_awaited(here: App, url: str) -> None:
    async with ASYNC["asyncpg"](url) as own:
        call = here.workflows["fulfil"].options(transaction=own.connection).start(1)
        with pytest.raises(PerdureError, match="use await there"):
            await asyncio.to_thread(call.wait)
    async with ASYNC["asyncpg"](url) as own:
        call = here.workflows["fulfil"].options(transaction=own.connection).start(1)
        with pytest.raises(PerdureError, match="use await"):
            call.wait()
        await call


@pytest.mark.anyio
async def test_in_a_step_but_not_in_a_workflow(url: str) -> None:
    app = make(url)
    fulfil = app.workflows["fulfil"]

    @step
    async def inside(order: int) -> str:
        async with ASYNC["asyncpg"](url) as own:
            return (await fulfil.options(transaction=own.connection).start(order)).id

    @app.workflow
    async def good(order: int) -> str:
        return await inside(order)

    @app.workflow
    async def bad(order: int) -> str:
        async with ASYNC["asyncpg"](url) as own:
            return (await fulfil.options(transaction=own.connection).start(order)).id

    async with app.worker():
        assert await app.run(await good.run(1)).result(10) == 2
        with pytest.raises(RunFailed, match="do it in a step"):
            await bad.run(1)
    await app.close()


@pytest.mark.anyio
@pytest.mark.parametrize("behind", [False, True])
async def test_who_holds_up_the_start_of_a_child_is_named(behind: bool, url: str, postgres: Postgres) -> None:
    """By an id, or because the first run of a queue waits for one."""
    app = make(url)
    fulfil = app.workflows["fulfil"]

    @app.workflow
    async def parent() -> int:
        return await fulfil.options(id="free" if behind else "taken", queue="fresh").run(7)

    async def first() -> None:
        await fulfil.options(id="taken", queue="fresh").start(7)

    waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with app.worker(queues=["default", "fresh"]), asyncio.TaskGroup() as others:
        async with ASYNC["asyncpg"](url) as own, asyncio.timeout(30):
            await fulfil.options(id="taken", transaction=own.connection).start(7)
            if behind:
                others.create_task(first())
                while not postgres.run(waits, url=url):
                    await asyncio.sleep(0.01)
            run = await parent.start()
            while not (why := await run.why()).startswith("is held until"):
                await asyncio.sleep(0.01)
            pid = own.connection.get_server_pid()
            assert ": what it starts has to wait for a transaction that is open: that of process" in why
            assert f"process {pid} (no name, user postgres, idle in transaction) since 20" in why
            assert f"UTC; let it commit, or SELECT pg_terminate_backend({pid})" in why
        assert await run.result(30) == 14
    await app.close()


@pytest.mark.anyio
async def test_in_a_schema_of_any_name(postgres: Postgres) -> None:
    plain = postgres.database()
    for schema in ('Odd "100%s" :name', "jobs"):
        where = f"{plain}?schema={schema}"
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute(script(parse_url(where.replace("%s", "%25s")), migrations()).encode())
        app = make(where.replace("%s", "%25s"))
        for opened in ASYNC.values():
            async with opened(plain) as own:
                run = await app.workflows["fulfil"].options(transaction=own.connection).start(1)
            assert (await run.status()).state is State.QUEUED
        await app.close()


@pytest.mark.anyio
async def test_a_user_without_the_right_is_told_which(here: App, url: str, postgres: Postgres) -> None:
    postgres.run("CREATE ROLE perdure_buyer LOGIN")
    try:
        own = url.replace("postgres@", "perdure_buyer@")
        start = 'GRANT EXECUTE ON FUNCTION "perdure".start_within'
        for grant in ("GRANT USAGE ON SCHEMA perdure TO perdure_buyer", f"{start} TO perdure_buyer"):
            with pytest.raises(StoreError, match=f'GRANT USAGE ON SCHEMA "perdure" and {start}'):
                async with ASYNC["asyncpg"](own) as theirs:
                    await here.workflows["fulfil"].options(transaction=theirs.connection).start(1)
            postgres.run(grant, url=url)
        async with ASYNC["asyncpg"](own) as theirs:
            run = await here.workflows["fulfil"].options(transaction=theirs.connection).start(1)
        assert (await run.status()).state is State.QUEUED
    finally:
        postgres.run("DROP OWNED BY perdure_buyer", url=url)
        postgres.run("DROP ROLE perdure_buyer")
