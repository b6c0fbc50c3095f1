"""The schema: brought up to date by whoever comes first, and refused when it is too old or too new for this version."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import asyncpg

from perdure.errors import SchemaTooNew, StoreError
from perdure.stores.postgres.connect import Connection, Way, connect
from perdure.stores.postgres.errors import DRIVER_ERRORS, is_late, is_transient, translate
from perdure.stores.postgres.past import connect_past
from perdure.stores.postgres.sql import Migration, load, migrations
from perdure.stores.postgres.url import Location, quote

Fetch: TypeAlias = Callable[..., Awaitable[list[asyncpg.Record]]]
"""Runs a statement, given it and its parameters, and gives its rows."""

_LOCK_WAIT = 2_000
"""Milliseconds that a migration waits for a lock: everybody who comes after it to the same table waits behind it."""
_PATIENCE = 120.0
"""Seconds for which it is tried again."""


async def migrate(location: Location, known: Sequence[Migration] | None = None) -> list[str]:
    """Applies what is missing, each migration in a transaction of its own; returns their names.

    Safe from many processes at once: one applies, the others wait and find nothing to do. No lock is waited for long,
    so that workers go on; then it is tried again. Raises `SchemaTooNew`, `StoreUnavailable`, or another `StoreError`.
    """
    known = migrations() if known is None else known
    try:
        _, connection = await connect_past(location, Way.POOLED_PLAIN, statement_timeout=0)
        try:
            missing = _missing(location, known, await _applied(connection.fetch, location))
            return [each.name for each in missing if await _patiently_apply(connection, location, known, each)]
        finally:
            connection.terminate()
    except DRIVER_ERRORS as error:
        raise translate(error, location) from error


async def pending(location: Location, known: Sequence[Migration] | None = None) -> list[Migration]:
    """What `migrate` would apply now. Reads only, and raises as it does."""
    known = migrations() if known is None else known
    try:
        connection = await connect(location, Way.POOLED_PLAIN)
        try:
            return _missing(location, known, await _applied(connection.fetch, location))
        finally:
            connection.terminate()
    except DRIVER_ERRORS as error:
        raise translate(error, location) from error


async def verify(location: Location, fetch: Fetch, known: Sequence[Migration] | None = None) -> None:
    """Raises `StoreError` when the schema is not there or behind this version, and `SchemaTooNew` when it is ahead and
    says that this version can't use it; beside them what `fetch` raises."""
    known = migrations() if known is None else known
    missing = _missing(location, known, await _applied(fetch, location))
    if missing:
        raise StoreError(
            f"the store {location.name} lacks {', '.join(each.name for each in missing)} in its schema "
            f"{location.schema!r}: run `perdure migrate`"
        )


def script(location: Location, missing: Sequence[Migration]) -> str:
    """What `psql` would have to run to do the same as `migrate`."""
    schema = quote(location.schema)
    # Whoever owns the schema need not have the right to make one, which CREATE SCHEMA IF NOT EXISTS asks for first.
    make = (
        f"BEGIN IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = {_literal(location.schema)}) THEN"
        f" CREATE SCHEMA {schema}; END IF; END"
    )
    head = f"DO {_literal(make)};\nSET search_path = {schema};\n"
    return "\n".join([head, *(each.script for each in missing)]) if missing else ""


def _literal(text: str) -> str:
    """A text as SQL has it, whatever standard_conforming_strings is."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


async def _patiently_apply(
    connection: Connection, location: Location, known: Sequence[Migration], migration: Migration
) -> bool:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return await _apply(connection, location, known, migration)
        except asyncpg.PostgresError as error:
            if not (is_transient(error) or is_late(error)) or time.monotonic() > until:
                raise
        await asyncio.sleep(random.uniform(0.05, 0.5))  # In which those who queued behind it go on.


async def _apply(connection: Connection, location: Location, known: Sequence[Migration], migration: Migration) -> bool:
    """Whether it was this process that applied it."""
    sql = load("migrate", location.schema)
    async with connection.transaction(isolation="read_committed"):  # What the lock was waited for is to be seen.
        await connection.fetch(sql["settle_in"], quote(location.schema), str(_LOCK_WAIT))
        if connection.get_server_version().major >= 17:
            await connection.execute("SET LOCAL transaction_timeout = 0")
        await connection.fetch(sql["lock"], f"perdure {location.schema}")
        if migration not in _missing(location, known, await _applied(connection.fetch, location)):
            return False
        if not await connection.fetchval(sql["exists"], location.schema):
            await _make_schema(connection, location)
        await connection.execute(migration.body)
    return True


async def _make_schema(connection: Connection, location: Location) -> None:
    try:
        await connection.execute(f"CREATE SCHEMA {quote(location.schema)}")
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreError(
            f"the store {location.name} has no schema {location.schema!r} yet, and this user may not make one: let the"
            " owner of the database GRANT CREATE ON DATABASE to it, or make the schema (CREATE SCHEMA … AUTHORIZATION"
            f" …; {error.args[0]})"
        ) from error


async def _applied(fetch: Fetch, location: Location) -> list[asyncpg.Record]:
    sql = load("migrate", location.schema)
    if not (await fetch(sql["booked"], location.schema))[0][0]:
        return []
    return await fetch(sql["applied"])


def _missing(location: Location, known: Sequence[Migration], applied: list[asyncpg.Record]) -> list[Migration]:
    newest = known[-1].version if known else 0
    for row in applied:
        # A newer version says with each migration which older ones can go on beside it.
        if row["version"] > newest and row["oldest"] > newest:
            raise SchemaTooNew(
                f"the store {location.name} has version {row['version']} of its schema {location.schema!r}, made by a "
                f"newer Perdure; this one knows versions up to {newest}: upgrade it"
            )
    versions = {row["version"] for row in applied}
    return [each for each in known if each.version not in versions]
