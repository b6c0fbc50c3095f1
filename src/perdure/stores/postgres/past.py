"""The way past a pooler, which a URL has as ?listen=…: it has to lead to the same database."""

from __future__ import annotations

import random

from msgspec.structs import replace

from perdure.errors import StoreUrlError
from perdure.stores.postgres.connect import Connection, Way, connect, find_way
from perdure.stores.postgres.errors import DRIVER_ERRORS, translate
from perdure.stores.postgres.url import Location
from perdure.wording import shown_url


async def connect_past(
    location: Location, way: Way | None = None, *, statement_timeout: int | None = None
) -> tuple[Way, Connection]:
    """One connection past the pooler, if the URL has a way; else the usual one. Without `way` it is found.

    Raises `StoreError`, which names the way: `StoreUrlError` for one to another database.
    """
    past = location
    if location.listen is not None:
        past = replace(location, url=location.listen, name=shown_url(location.listen))
    try:
        if way is None:
            way, connection = await find_way(past, statement_timeout=statement_timeout)
        else:
            connection = await connect(past, way, statement_timeout=statement_timeout)
    except DRIVER_ERRORS as error:
        raise translate(error, past) from error
    try:
        if past is not location and (there := await _elsewhere(location, connection)) is not None:
            raise StoreUrlError(
                f"the store {location.name} has a ?listen=… that leads to another database, {there!r} of {past.name}:"
                " it has to lead to the same one, past the pooler"
            )
    except DRIVER_ERRORS as error:
        connection.terminate()
        raise translate(error, location) from error
    except BaseException:
        connection.terminate()
        raise
    return way, connection


async def _elsewhere(location: Location, past: Connection) -> str | None:
    """The name of the database that a connection leads to, if that is not the one of the store.

    Takes a lock in the one, and tries to take it in the other: that needs no rights and no schema, and tells a copy
    from the original.
    """
    key = random.getrandbits(63)
    usual = await connect(location, Way.POOLED_PLAIN)
    try:
        async with past.transaction():  # In which a pooler keeps to one server.
            await past.fetch("SELECT pg_advisory_xact_lock($1)", key)
            if not await usual.fetchval("SELECT pg_try_advisory_xact_lock($1)", key):
                return None
            return await past.fetchval("SELECT current_database()")
    finally:
        usual.terminate()
