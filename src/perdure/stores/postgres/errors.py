"""The one place where errors of the driver and the server become errors of the store."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import parse_qsl

import asyncpg

from perdure.errors import (
    CheckpointNotFound,
    IdConflict,
    InvalidInput,
    KeyTaken,
    PerdureError,
    RunEnded,
    RunNotEnded,
    RunNotFound,
    ScheduleNotFound,
    StoreError,
    StoreUnavailable,
    StoreUrlError,
    UnknownWorkflow,
    ValueTooLarge,
    batch_conflict,
    not_of_batch,
)
from perdure.stores.postgres.url import Location, quote

DOMAIN: dict[str, type[PerdureError]] = {
    "PD001": RunNotFound,
    "PD002": RunEnded,
    "PD003": RunNotEnded,
    "PD004": CheckpointNotFound,
    "PD005": KeyTaken,
    "PD006": ScheduleNotFound,
    "PD010": InvalidInput,
    "PD020": InvalidInput,
    "PD021": ValueTooLarge,
    "PD022": IdConflict,
    "PD023": UnknownWorkflow,
    "PD024": StoreError,
}
"""What the SQL functions raise by codes of their own; the message is theirs, for people."""

_CONFLICTS: dict[str, Callable[[str, str], PerdureError]] = {
    "PD008": batch_conflict,
    "PD009": lambda run_id, _: not_of_batch(run_id),
}
"""The same, where the detail is an id."""

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""Whatever a call of the driver may raise."""

_TRANSIENT = {"40001", "40P01"}
"""Serialization failure, deadlock: rolled back for certain, and likely to work soon."""

_OF_ANOTHER = (62, 64)
"""What OpenSSL says of a certificate that is trusted, but has another host's name or address."""
_OF_FILES = ("PEM", "X509")
"""Where OpenSSL reads files; what goes wrong with a connection is from elsewhere."""
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")

_MIGRATE = "has no schema {schema!r} of this version: run `perdure migrate`"
_OTHERS = "has something else of that name in the schema {schema!r}: give the store one of its own with ?schema=…"
_SAID = {
    "28P01": "refused the password: correct it in the URL, in PGPASSWORD or in the password file",
    "28000": "does not let this user in: look at the user in the URL and at the server's pg_hba.conf",
    "3D000": "has no such database: make it (createdb), or correct the URL",
    "3F000": _MIGRATE,
    "42P01": _MIGRATE,
    "42883": _MIGRATE,
    "42703": _MIGRATE,
    "42501": "does not permit that to this user: let the owner of schema {schema!r} grant it, or use the owner",
    "42P05": "seems to be behind a pooler that mixes up prepared statements: update PgBouncer to 1.21 or newer",
    "42P07": _OTHERS,
    "42710": _OTHERS,
    "42723": _OTHERS,
    "22": "refused a value",
    "54": "refused a value as too large; keep large values elsewhere and pass on where they are",
    "XX001": "is damaged: stop all workers and restore a backup",
    "XX002": "has a damaged index: run REINDEX, and look at the disk",
}
_SAID_FOR_NOW = {
    "08": "can't be reached, or broke the connection off",
    "25006": "takes no writes: it is a read replica, or was one after a failover, and the URL must lead to the primary;"
    " or default_transaction_read_only is on",
    "25P03": "ended a transaction that was idle for too long",
    "25P04": "ended a transaction that took longer than transaction_timeout",
    "26000": "seems to be behind a pooler that mixes up prepared statements: update PgBouncer to 1.21 or newer",
    "40": "rolled the call back, others are at the same rows; try again",
    "53100": "has no room left on its disk: free some",
    "53200": "is out of memory, or of room for locks: raise max_locks_per_transaction for those that much work of one"
    " transaction takes, or make that smaller",
    "53300": "has no connection left: raise max_connections, use PgBouncer, or lower ?pool=",
    "53": "is out of resources",
    "55P03": "has a lock that somebody holds for long: find the transaction in pg_stat_activity",
    "57014": "took longer for a call than statement_timeout, or somebody cancelled it",
    "57": "is shutting down, starting up, or ended the connection",
    "58": "can't read or write its files: look at its disk and log",
    "XX": "failed by itself: look at its log",
}
_BROKEN = ("08", "25006", "25P03", "25P04", "26000", "42P05", "57P", "58")
"""After these a connection is of no use, even where it is open still."""


def is_transient(error: BaseException) -> bool:
    """Whether the call was certainly rolled back and deserves another try at once."""
    if isinstance(error, asyncpg.InvalidCachedStatementError | asyncpg.OutdatedSchemaCacheError):
        return True  # The schema was migrated beneath a prepared statement.
    return isinstance(error, asyncpg.PostgresError) and code(error) in _TRANSIENT


def is_late(error: asyncpg.PostgresError) -> bool:
    """Whether a lock was not there in time: rolled back for certain, and somebody may have it for long."""
    return code(error) == "55P03"


def is_broken(error: BaseException) -> bool:
    """Whether the connection that the error came by is to be dropped."""
    if isinstance(error, asyncpg.PostgresError):
        return code(error).startswith(_BROKEN)
    return isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def code(error: asyncpg.PostgresError) -> str:
    """The SQLSTATE."""
    return error.sqlstate or ""


def translate(error: BaseException, location: Location) -> Exception:
    """The store's error for what a driver or server said; the words of those are in its parentheses."""
    translated = _translate(error, location)
    translated.__cause__ = error
    return translated


def _translate(error: BaseException, location: Location) -> Exception:
    where = f"the store {location.name}"
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error, location, where)
    if isinstance(error, asyncpg.ClientConfigurationError):
        return StoreUrlError(f"{where} has a URL that can't be used ({error})")
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OF_ANOTHER:
            return StoreError(
                f"{where} shows the certificate of another host: correct the host in the URL, or say sslmode=verify-ca"
                f" to take any that is trusted ({error})"
            )
        return StoreError(f"{where} shows a certificate that is not trusted: give sslrootcert=… ({error})")
    if isinstance(error, ssl.SSLError) and error.library in _OF_FILES:
        files = "; ".join(f"{option} is {file!r}" for option, file in _files(location)) or "the default one"
        return StoreError(f"{where} can't be used: a file of certificates has none that can be read ({files}; {error})")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{where} did not answer in time")
    if isinstance(error, FileNotFoundError):  # Or it is the socket of a server that does not run.
        for option, file in _files(location):
            if not os.path.isfile(file):
                return StoreError(f"{where} can't be used: {option} is {file!r}, and there is no such file")
    if isinstance(error, OSError):
        return StoreUnavailable(f"{where} can't be reached ({str(error) or type(error).__name__})")
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StoreUnavailable(f"{where} has no server that takes writes just now ({error})")
    if isinstance(error, asyncpg.InternalClientError):
        # A server that dies while it answers confuses the driver.
        return StoreUnavailable(f"{where} broke the connection off ({error})")
    if isinstance(error, asyncpg.InterfaceError) and "clos" in str(error):
        return StoreUnavailable(f"{where} closed the connection ({error})")
    return StoreError(f"{where} failed: {error}")


def _files(location: Location) -> list[tuple[str, str]]:
    """The files of certificates and keys that the URL names, by their options."""
    return [pair for pair in parse_qsl(location.url.partition("?")[2]) if pair[0] in _FILES]


def _from_server(error: asyncpg.PostgresError, location: Location, where: str) -> Exception:
    state = code(error)
    said = str(error.args[0]) if error.args else str(error)  # Without hints, some of which are the driver's.
    if state in _CONFLICTS:
        return _CONFLICTS[state](error.detail or "", said)
    if state in DOMAIN:
        return DOMAIN[state](said)
    if error.detail:
        said = f"{said}: {error.detail}"
    if state == "54000" and "NOTIFY" in said:  # Which all calls meet that tell of something, and none is to blame for.
        return StoreUnavailable(
            f"{where} has no room for notifications: some session listens and has been in a transaction for long; find"
            f" it in pg_stat_activity and end it ({said})"
        )
    # The longest key first: a code of its own goes before that of its class.
    for key in (state, state[:3], state[:2]):
        if key in _SAID:
            return StoreError(f"{where} {_SAID[key].format(schema=location.schema)} ({said})")
        if key in _SAID_FOR_NOW:
            return StoreUnavailable(f"{where} {_SAID_FOR_NOW[key]} ({said})")
    return StoreError(f"{where} failed: {said} ({state})")


def translate_theirs(error: BaseException, location: Location, function: str) -> Exception | None:
    """What an error on a connection of the application means, if it is ours to tell: what our functions raise, and that
    they are not there. Drivers of all kinds have the SQLSTATE; what wraps them has them as a cause."""
    found: BaseException | None = None
    while error is not None:
        if isinstance(getattr(error, "sqlstate", None), str):
            found = error
        inner = getattr(error, "orig", None) or error.__cause__
        if inner is None:
            break
        error = inner
    if found is None:
        return None
    state = cast("str", getattr(found, "sqlstate", ""))
    said = str(getattr(getattr(found, "diag", None), "message_primary", None) or found.args[0])
    if state in DOMAIN:
        return DOMAIN[state](said)
    where = f"the connection given with transaction= leads to a database where schema {location.schema!r}"
    if state in ("3F000", "42P01", "42883", "42703"):
        return StoreError(
            f"{where} is not there, or not of this version: it has to be the database of the store {location.name},"
            f" brought up to date with `perdure migrate` ({said})"
        )
    if state == "42501":
        schema = quote(location.schema)
        return StoreError(
            f"{where} is not open to this user ({said}): GRANT USAGE ON SCHEMA {schema} and"
            f" GRANT EXECUTE ON FUNCTION {schema}.{function} to it"
        )
    return None
