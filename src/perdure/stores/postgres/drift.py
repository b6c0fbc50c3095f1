"""Whether somebody changed the schema by hand: compared with what the migrations make on the same server."""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import Struct

from perdure.stores.postgres.connect import Connection, Way
from perdure.stores.postgres.errors import DRIVER_ERRORS, translate
from perdure.stores.postgres.past import connect_past
from perdure.stores.postgres.sql import Migration, load, migrations
from perdure.stores.postgres.url import Location, quote


class Drift(Struct):
    """What differs, each by kind and name: "index run_ready"."""

    missing: list[str]
    changed: list[str]
    extra: list[str]


async def drift(location: Location, known: Sequence[Migration] | None = None) -> Drift:
    """Compares the schema with one that the migrations make now, in a transaction that is rolled back.

    Nothing is kept and no lock of the store is taken, but the user needs the right to make schemas in the database.
    Settings of tables do not count: they are the administrator's. Raises `StoreError`.
    """
    known = migrations() if known is None else known
    try:
        _, connection = await connect_past(location, Way.POOLED_PLAIN)
        try:
            there, expected = await _catalogs(connection, location, known)
        finally:
            connection.terminate()
    except DRIVER_ERRORS as error:
        raise translate(error, location) from error
    return Drift(
        missing=sorted(expected.keys() - there.keys()),
        changed=sorted(what for what in expected.keys() & there.keys() if expected[what] != there[what]),
        extra=sorted(there.keys() - expected.keys()),
    )


async def _catalogs(
    connection: Connection, location: Location, known: Sequence[Migration]
) -> tuple[dict[str, str], dict[str, str]]:
    scratch = f"perdure_scratch_{random.getrandbits(48):x}"
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute("SET TRANSACTION READ WRITE")  # Unless it is a replica, whatever the default is.
        if connection.get_server_version().major >= 17:
            await connection.execute("SET LOCAL transaction_timeout = 0")
        there = await _catalog(connection, location.schema)
        await connection.execute(f"CREATE SCHEMA {scratch}; SET LOCAL search_path = {scratch}")
        for migration in known:
            await connection.execute(migration.body)
        return there, await _catalog(connection, scratch)
    finally:
        await transaction.rollback()


async def _catalog(connection: Connection, schema: str) -> dict[str, str]:
    await connection.execute(f"SET LOCAL search_path = {quote(schema)}")
    rows = await connection.fetch(load("drift", schema)["catalog"], quote(schema))
    return {row["what"]: row["text"] for row in rows}
