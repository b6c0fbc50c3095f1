"""Connections of applications, of whatever driver: told apart by their classes, so that none has to be installed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from perdure.errors import InvalidInput
from perdure.stores.postgres.url import quote

_TAKEN = "transaction= takes a connection or session with a transaction: of psycopg 3, asyncpg, SQLAlchemy or Django"


class Caller(Struct):
    """How functions of the schema are called on a connection."""

    is_async: bool
    ask: Callable[[str, str], Awaitable[Any]]
    """Runs a statement with one parameter, which is a text, and returns the text that it selects, or its bytes."""
    parameter: str
    """How the driver has a parameter."""
    escape: Callable[[str], str]

    async def call(self, schema: str, function: str, said: str) -> str | bytes:
        """Calls a function that takes and returns a text, which may be its bytes in UTF-8. Raises what the driver
        raises."""
        name = self.escape(f"{quote(schema)}.{function}")
        return await self.ask(f"SELECT {name}({self.parameter})", said)


def caller(connection: object) -> Caller:
    """Raises `InvalidInput` for what is no connection to PostgreSQL, and where no transaction is open."""
    for cls in type(connection).__mro__:
        kind = _KINDS.get((cls.__module__.partition(".")[0], cls.__name__))
        if kind is not None:
            return kind(connection)
    raise InvalidInput(f"{_TAKEN}; not {connection!r} ({type(connection).__module__}.{type(connection).__qualname__})")


def _no_transaction(how: str) -> InvalidInput:
    return InvalidInput(f"the connection given with transaction= has no transaction open: {how}")


def _asyncpg(connection: Any) -> Caller:
    if not connection.is_in_transaction():
        raise _no_transaction("use it within  async with connection.transaction()")

    async def ask(statement: str, said: str) -> Any:
        # As bytes: the application may have a codec of its own for texts.
        return await connection.fetchval(f"SELECT convert_to(({statement}), 'UTF8')", said.encode())

    return Caller(True, ask, "convert_from($1::bytea, 'UTF8')", str)


def _psycopg(connection: Any) -> Caller:
    _check_psycopg(connection)

    async def ask(statement: str, said: str) -> Any:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        ours: Any = Cursor(connection, row_factory=tuple_row)  # Its own kind may have parameters of another kind.
        _plain(ours)
        with ours as cursor:
            return cursor.execute(statement, (said,)).fetchone()[0]

    return Caller(False, ask, "%s::text", _percent)


def _psycopg_async(connection: Any) -> Caller:
    _check_psycopg(connection)

    async def ask(statement: str, said: str) -> Any:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        ours: Any = AsyncCursor(connection, row_factory=tuple_row)
        _plain(ours)
        async with ours as cursor:
            await cursor.execute(statement, (said,))
            return (await cursor.fetchone())[0]

    return Caller(True, ask, "%s::text", _percent)


def _plain(cursor: Any) -> None:
    """Has texts be texts, where the connection has adapters of the application."""
    from psycopg.types.string import StrDumper, TextLoader

    cursor.adapters.register_dumper(str, StrDumper)
    cursor.adapters.register_loader("text", TextLoader)


def _check_psycopg(connection: Any) -> None:
    if connection.autocommit and connection.info.transaction_status == 0:  # idle
        raise _no_transaction("it is in autocommit mode; use it within  with connection.transaction()")


def _sqlalchemy(connection: Any) -> Caller:
    _check_sqlalchemy(connection)

    async def ask(statement: str, said: str) -> Any:
        from sqlalchemy import text

        return connection.execute(text(statement), {"said": said}).scalar_one()

    return Caller(False, ask, "CAST(:said AS text)", _colon)


def _sqlalchemy_async(connection: Any) -> Caller:
    _check_sqlalchemy(connection)

    async def ask(statement: str, said: str) -> Any:
        from sqlalchemy import text

        return (await connection.execute(text(statement), {"said": said})).scalar_one()

    return Caller(True, ask, "CAST(:said AS text)", _colon)


def _check_sqlalchemy(connection: Any) -> None:
    """A session tells by its engine what it is connected to, an async connection by the one that it is made of."""
    bound = (
        connection.get_bind() if hasattr(connection, "get_bind") else getattr(connection, "sync_connection", connection)
    )
    if bound is None:
        raise _no_transaction("use it within  async with engine.begin() as connection")
    if bound.dialect.name != "postgresql":
        raise InvalidInput(f"{_TAKEN}; this one is to {bound.dialect.name}, and the store is on PostgreSQL")
    if _is_autocommit(bound):
        raise _no_transaction("it is in autocommit mode")


def _is_autocommit(bound: Any) -> bool:
    """A connection tells by that of the driver; an engine, which a session has taken none from yet perhaps, by what it
    was made with."""
    if hasattr(bound, "connection"):
        return bool(getattr(bound.connection.dbapi_connection, "autocommit", False))
    usual = getattr(bound.dialect, "_on_connect_isolation_level", None)
    return bound.get_execution_options().get("isolation_level", usual) == "AUTOCOMMIT"


def _django(connection: Any) -> Caller:
    if connection.vendor != "postgresql":
        raise InvalidInput(f"{_TAKEN}; this one is to {connection.vendor}, and the store is on PostgreSQL")
    if not connection.in_atomic_block and connection.get_autocommit():
        raise _no_transaction("use it within  with transaction.atomic()")

    async def ask(statement: str, said: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(statement, [said])
            return cursor.fetchone()[0]

    return Caller(False, ask, "%s::text", _percent)


def _percent(name: str) -> str:
    return name.replace("%", "%%")


def _colon(name: str) -> str:
    return name.replace(":", "\\:")


_KINDS: dict[tuple[str, str], Callable[[Any], Caller]] = {
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "AsyncConnection"): _psycopg_async,
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): _sqlalchemy,
    ("sqlalchemy", "scoped_session"): _sqlalchemy,
    ("sqlalchemy", "AsyncConnection"): _sqlalchemy_async,
    ("sqlalchemy", "AsyncSession"): _sqlalchemy_async,
    ("sqlalchemy", "async_scoped_session"): _sqlalchemy_async,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "ConnectionProxy"): _django,
}
"""By package and class."""
