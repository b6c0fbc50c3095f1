"""From a location to a connection: what is checked and set, and what is known of what lies between."""

from __future__ import annotations

import asyncio
import os
import random
import select
import socket
from collections.abc import Coroutine
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import asyncpg

from perdure.errors import StoreError, StoreUnavailable
from perdure.stores.postgres.url import Location, quote

if TYPE_CHECKING:
    # Generic for type checkers alone.
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

_OLDEST = 14
_WITH_TRANSACTION_TIMEOUT = 17
_GRACE = 5.0
"""Seconds over the statement's time limit after which a server that says nothing is given up."""
_STATEMENTS = 256
"""Prepared statements that a connection keeps."""

_ISOLATION = "read committed"
_HELLO = "SELECT pg_is_in_recovery(), current_setting('server_encoding')"
_SETTLE_IN = f"""
{_HELLO},
       set_config('search_path', $1, false), set_config('statement_timeout', $2, false),
       set_config('lock_timeout', $3, false), set_config('idle_in_transaction_session_timeout', $4, false),
       set_config('timezone', 'UTC', false), set_config('enable_seqscan', 'off', false),
       set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false),
       set_config('enable_bitmapscan', 'off', false), set_config('jit', 'off', false),
       set_config('idle_session_timeout', '0', false),
       set_config('default_transaction_isolation', '{_ISOLATION}', false)
"""
"""Plans are kept, and the tables of a queue may be tiny when one is made and huge when it is used: no plan walks a
table because that was cheap once, or sorts what an index has in order. What waits for a lock looks again once it has
it, which needs the isolation: a database or a user may have another one by default."""
_SETTLE_IN_17 = f"{_SETTLE_IN.rstrip()}, set_config('transaction_timeout', '0', false)"
"""From PostgreSQL 17 on."""
_IDLE_IN_TRANSACTION = 30_000


_MOMENT = 0.5
"""Seconds that a connection which nobody wants any more may take to be made."""


class Way(Enum):
    """What is between us and the server."""

    DIRECT = auto()
    """Nothing: the session is ours, with settings of its own and prepared statements."""
    POOLED = auto()
    """A pooler that follows prepared statements, such as PgBouncer from 1.21 on. Settings would be others' too."""
    POOLED_PLAIN = auto()
    """A pooler that does not: each statement is prepared anew, in one exchange with its execution."""


async def connect(location: Location, way: Way = Way.DIRECT, *, statement_timeout: int | None = None) -> Connection:
    """One connection, ready for use.

    Errors are those of the driver, except `StoreError` for a server that is too old or has another encoding, and
    `StoreUnavailable` for a replica.
    """
    return (await _made(_connect(location, way, statement_timeout)))[1]


async def find_way(location: Location, *, statement_timeout: int | None = None) -> tuple[Way, Connection]:
    """Looks what is between us and the server, and gives the connection for it by which it looked. Errors are as those
    of `connect`."""
    return await _made(_connect(location, None, statement_timeout))


async def check_isolation(location: Location, connection: Connection) -> None:
    """Raises `StoreError` where transactions behind a pooler, whose sessions are left as they are, begin with another
    isolation than what the store needs. Ends the connection then."""
    try:
        isolation = await connection.fetchval("SELECT current_setting('transaction_isolation')")
    except BaseException:
        connection.terminate()
        raise
    if isolation != _ISOLATION:
        connection.terminate()
        raise StoreError(
            f"the store {location.name} is behind a pooler, and its default_transaction_isolation is {isolation!r}:"
            f" Perdure needs {_ISOLATION!r}, so ALTER ROLE … SET default_transaction_isolation = '{_ISOLATION}' for its"
            " user, and have the pooler connect anew (RECONNECT)"
        )


async def _made(work: Coroutine[Any, Any, tuple[Way, Connection]]) -> tuple[Way, Connection]:
    connecting = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        # Cut off while it asks for TLS, the driver leaves a future behind that fails without anybody to see it.
        await asyncio.wait([connecting], timeout=_MOMENT)
        if not connecting.done():
            connecting.cancel()
        elif not connecting.cancelled() and connecting.exception() is None:
            connecting.result()[1].terminate()
        raise


async def _connect(location: Location, way: Way | None, statement_timeout: int | None) -> tuple[Way, Connection]:
    limit = location.statement_timeout if statement_timeout is None else statement_timeout
    connection: Connection = await asyncpg.connect(
        location.url,
        timeout=location.connect_timeout,
        command_timeout=_patience(limit),
        statement_cache_size=0 if way is Way.POOLED_PLAIN else _STATEMENTS,
        # A pooler would refuse further settings here.
        server_settings={"application_name": location.application_name},
    )
    try:
        _keep_alive(connection)
        if way is None:
            way = await _look(connection)
            if way is Way.POOLED_PLAIN:  # A connection that keeps prepared statements is of no use there.
                await connection.close(timeout=_GRACE)
                return await _connect(location, way, statement_timeout)
        version = connection.get_server_version().major
        _check_version(location, version)
        hello, settings = _HELLO, ()
        if way is Way.DIRECT:
            hello = _SETTLE_IN if version < _WITH_TRANSACTION_TIMEOUT else _SETTLE_IN_17
            settings = (quote(location.schema), str(limit), str(location.lock_timeout), str(_IDLE_IN_TRANSACTION))
        replica, encoding, *_ = (await connection.fetch(hello, *settings))[0].values()
        _check(location, replica, encoding)
    except BaseException:
        connection.terminate()
        raise
    return way, connection


async def _look(connection: Connection) -> Way:
    """Asks in a way that any pooler passes on: by statements that are not prepared, of whose answers the driver tells
    how many rows there are."""
    if await connection.execute(f"SELECT WHERE pg_backend_pid() = {connection.get_server_pid()}") == "SELECT 1":
        return Way.DIRECT
    async with connection.transaction():  # In which a pooler keeps to one server.
        name = f"perdure_{os.getpid()}_{random.getrandbits(32)}"
        statement = await connection.prepare("SELECT 1", name=name)
        if await connection.execute(f"SELECT FROM pg_prepared_statements WHERE name = '{name}'") == "SELECT 0":
            return Way.POOLED  # The pooler gave it a name of its own.
        await connection.execute(f"DEALLOCATE {name}")
        del statement  # Until here: the driver closes those that nobody has.
        return Way.POOLED_PLAIN


def is_ended(connection: Connection) -> bool:
    """Whether the other side has ended a connection that nobody uses, as far as this machine knows already.

    The driver learns of it when its event loop has read the goodbye; who calls before that would not know whether the
    call was carried out. Nothing else is said on a connection that does not listen.
    """
    sock = connection._transport.get_extra_info("socket")
    if sock is None or not hasattr(select, "poll") or connection._protocol._is_cancelling():
        return False  # The end of a call that was cancelled may be on its way.
    news = select.poll()
    news.register(sock.fileno(), select.POLLIN)
    return bool(news.poll(0))


def _patience(statement_timeout: int) -> float | None:
    return statement_timeout / 1000 + _GRACE if statement_timeout else None


def _check_version(location: Location, version: int) -> None:
    if version < _OLDEST:
        raise StoreError(
            f"the store {location.name} is on PostgreSQL {version}, which is too old: Perdure needs {_OLDEST} or newer"
        )


def _check(location: Location, replica: bool, encoding: str) -> None:
    if encoding != "UTF8":
        raise StoreError(
            f"the store {location.name} is in a database whose encoding is {encoding}: Perdure needs UTF8, so make "
            "another one (CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0)"
        )
    if replica:
        raise StoreUnavailable(
            f"the store {location.name} is a read replica, or recovers just now; the URL must lead to the primary"
        )


def _keep_alive(connection: Connection) -> None:
    """Has a server whose machine is gone found out within seconds, instead of when a call's time is over."""
    sock = connection._transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10_000)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
