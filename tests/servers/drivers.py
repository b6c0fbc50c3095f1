"""Connections of applications by each driver that they may use, all looking alike to tests."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import cache
from typing import Any, LiteralString, cast
from urllib.parse import urlsplit

import asyncpg
import psycopg
import psycopg.rows
import psycopg.types.string
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session


class Transaction:
    """A transaction: what to pass on, and how to run a statement in it."""

    def __init__(self, connection: Any, run: Callable[[str], Any]) -> None:
        self.connection = connection
        self.run = run


@contextmanager
def _psycopg(url: str) -> Generator[Transaction]:
    with psycopg.connect(url) as connection:
        yield Transaction(connection, lambda sql: connection.execute(cast("LiteralString", sql)))


@contextmanager
def _psycopg_block(url: str) -> Generator[Transaction]:
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        cast("Any", connection).row_factory = psycopg.rows.dict_row
        yield Transaction(connection, lambda sql: connection.execute(cast("LiteralString", sql)))


class _Shout(psycopg.types.string.StrDumper):
    """How some application writes text."""

    def dump(self, obj: str) -> bytes:
        return obj.upper().encode()


class _Say(psycopg.types.string.TextLoader):
    """And reads it."""

    def load(self, data: Any) -> str:
        return f"said {bytes(data).decode()}"


def _set_adapters(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    connection.adapters.register_dumper(str, _Shout)
    connection.adapters.register_loader("text", _Say)


@contextmanager
def _psycopg_adapters(url: str) -> Generator[Transaction]:
    with psycopg.connect(url) as connection:
        _set_adapters(connection)
        yield Transaction(connection, lambda sql: connection.execute(cast("LiteralString", sql)))


@contextmanager
def _sqlalchemy_connection(url: str) -> Generator[Transaction]:
    engine = create_engine(_for_sqlalchemy(url, "psycopg"))
    try:
        with engine.begin() as connection:
            yield Transaction(connection, lambda sql: connection.execute(text(sql)))
    finally:
        engine.dispose()


@contextmanager
def _sqlalchemy_session(url: str) -> Generator[Transaction]:
    engine = create_engine(_for_sqlalchemy(url, "psycopg"))
    try:
        with Session(engine) as session, session.begin():
            yield Transaction(session, lambda sql: session.execute(text(sql)))
    finally:
        engine.dispose()


@contextmanager
def _django(url: str) -> Generator[Transaction]:
    connections, transaction = _django_settings()
    parts = urlsplit(url)
    connections.databases["default"] |= {"NAME": parts.path[1:], "PORT": parts.port, "USER": parts.username}
    connection = connections["default"]
    connection.settings_dict |= connections.databases["default"]
    try:
        with transaction.atomic():
            yield Transaction(_proxy(), lambda sql: connection.cursor().execute(sql))
    finally:
        connection.close()


def _proxy() -> Any:
    from django.db import connection  # pyright: ignore[reportMissingTypeStubs]

    return connection


@cache
def _django_settings() -> tuple[Any, Any]:
    import django  # pyright: ignore[reportMissingTypeStubs]
    from django.conf import settings  # pyright: ignore[reportMissingTypeStubs]
    from django.db import connections, transaction  # pyright: ignore[reportMissingTypeStubs]

    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1"}})
    django.setup()
    return connections, transaction


SYNC: dict[str, Callable[[str], AbstractContextManager[Transaction]]] = {
    "psycopg": _psycopg,
    "psycopg-block": _psycopg_block,
    "psycopg-adapters": _psycopg_adapters,
    "sqlalchemy-connection": _sqlalchemy_connection,
    "sqlalchemy-session": _sqlalchemy_session,
    "django": _django,
}
"""Each commits at its end, or rolls back when that is an error."""


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncGenerator[Transaction]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield Transaction(connection, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_codecs(url: str) -> AsyncGenerator[Transaction]:
    """With codecs of the application for what JSON and texts become, and are made of."""
    connection = await asyncpg.connect(url)
    try:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await connection.set_type_codec("text", encoder=str.upper, decoder="said {}".format, schema="pg_catalog")
        async with connection.transaction():
            assert await connection.fetchval("SELECT $1::jsonb", {"a": 1}) == {"a": 1}
            assert await connection.fetchval("SELECT $1::text", "a") == "said A"
            yield Transaction(connection, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def _psycopg_async_adapters(url: str) -> AsyncGenerator[Transaction]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        _set_adapters(connection)
        yield Transaction(connection, lambda sql: connection.execute(cast("LiteralString", sql)))


@asynccontextmanager
async def _asyncpg_pool(url: str) -> AsyncGenerator[Transaction]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection, connection.transaction():
        yield Transaction(connection, connection.execute)


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncGenerator[Transaction]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Transaction(connection, lambda sql: connection.execute(cast("LiteralString", sql)))


def _sqlalchemy_async(driver: str, *, session: bool) -> Callable[[str], AbstractAsyncContextManager[Transaction]]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncGenerator[Transaction]:
        engine = create_async_engine(_for_sqlalchemy(url, driver))
        try:
            if session:
                async with AsyncSession(engine) as connection, connection.begin():
                    yield Transaction(connection, lambda sql: connection.execute(text(sql)))
            else:
                async with engine.begin() as connection:
                    yield Transaction(connection, lambda sql: connection.execute(text(sql)))
        finally:
            await engine.dispose()

    return opened


ASYNC: dict[str, Callable[[str], AbstractAsyncContextManager[Transaction]]] = {
    "asyncpg": _asyncpg,
    "asyncpg-pool": _asyncpg_pool,
    "asyncpg-codecs": _asyncpg_codecs,
    "psycopg": _psycopg_async,
    "psycopg-adapters": _psycopg_async_adapters,
    "sqlalchemy-asyncpg-connection": _sqlalchemy_async("asyncpg", session=False),
    "sqlalchemy-asyncpg-session": _sqlalchemy_async("asyncpg", session=True),
    "sqlalchemy-psycopg-session": _sqlalchemy_async("psycopg", session=True),
}


def _for_sqlalchemy(url: str, driver: str) -> str:
    return f"postgresql+{driver}://{url.partition('://')[2]}"
