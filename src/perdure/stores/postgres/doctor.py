"""What `perdure doctor` shows of a store on PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import asyncpg

from perdure.errors import StoreError
from perdure.model import Millis
from perdure.stores.base import Finding, Severity
from perdure.stores.postgres.connect import Connection, Way, find_way
from perdure.stores.postgres.drift import Drift, drift
from perdure.stores.postgres.errors import DRIVER_ERRORS, translate
from perdure.stores.postgres.listen import hears
from perdure.stores.postgres.migrate import pending
from perdure.stores.postgres.sql import load, migrations
from perdure.stores.postgres.url import Location, quote
from perdure.wording import counted, does, shortened

_OLD: Millis = 60_000
"""A transaction that is open for longer keeps dead rows from being cleared away."""
_MANY_DEAD = 20_000
_BLOATED, _LARGE = 4, 32 << 20
"""How many times what its entries need an index may have, and from how many bytes on that matters."""
_FULL = 0.9
_FEW = 8
"""Connections of a worker process: four of its own, and as many for what it and its steps ask."""
_SHORT: Millis = 30_000
_CLOCKS_APART: Millis = 1_000
_LITTLE_MEMORY = 1024
"""Kibibytes, as `work_mem` has them."""
_MANY_RECHECKS = 5_000
_UNSEEN = "do what is said there or in the other lines, and look again"


async def examine(location: Location, now: Millis | None = None) -> list[Finding]:
    """Looks at everything that can be wrong with a store, its server, and what lies between.

    Reads only, but for a scratch schema that is rolled back. `now` replaces the server's clock where leases are looked
    at. What can't be looked at is a finding too. Raises `StoreError` when the server can't be reached.
    """
    sql = load("doctor", location.schema)
    try:
        way, connection = await find_way(location)
    except DRIVER_ERRORS as error:
        raise translate(error, location) from error

    async def asked(name: str, judge: Callable[[Sequence[Any]], Iterable[Finding]], *args: object) -> Iterable[Finding]:
        return judge(await connection.fetch(sql[name], *args))

    findings = [_connection(location, way)]
    schema = location.schema
    looks: list[tuple[str, Callable[[], Awaitable[Iterable[Finding]]]]] = [
        ("the server", lambda: _server(connection, sql)),
        ("rights", lambda: asked("rights", _rights, schema)),
        ("the schema", lambda: _schema(location)),
        ("settings", lambda: asked("settings", lambda rows: _settings({row["name"]: row["value"] for row in rows}))),
        ("connections", lambda: asked("connections", lambda rows: _connections(*rows[0]))),
        ("what keeps dead rows", lambda: _held(connection, sql)),
        ("tables", lambda: asked("tables", lambda rows: _tables(rows, schema), schema)),
        ("indexes", lambda: asked("indexes", lambda rows: _indexes(rows, schema), schema)),
        ("workers", lambda: _work(connection, sql, now)),
        ("wake-ups", lambda: _wake_ups(location, way)),
    ]
    try:
        for what, look in looks:
            try:
                findings += await look()
            except (StoreError, *DRIVER_ERRORS) as error:
                said = error if isinstance(error, StoreError) else translate(error, location)
                findings.append(Finding(Severity.PROBLEM, f"{what} can't be looked at: {said}", _UNSEEN))
    finally:
        connection.terminate()
    return findings


async def _server(connection: Connection, sql: Mapping[str, str]) -> list[Finding]:
    sent = time.time() * 1000
    row = (await connection.fetch(sql["server"]))[0]
    came = time.time() * 1000
    findings = [Finding(Severity.OK, f"PostgreSQL {row['version']}"), clocks(sent, came, row["now"])]
    if not row["sees_others"]:
        findings.append(
            Finding(
                Severity.WARNING,
                "this user does not see what others' sessions do, such as who holds an old snapshot",
                "GRANT pg_read_all_stats to it, or run this as another user",
            )
        )
    return findings


def clocks(sent: float, came: float, there: Millis) -> Finding:
    """Whether a clock that was asked between two moments agrees with ours."""
    apart = max(sent - there, there - came, 0.0)
    if apart < _CLOCKS_APART:
        return Finding(Severity.OK, "the clocks of this machine and of the server agree")
    return Finding(
        Severity.WARNING,
        f"the clocks of this machine and of the server are {apart / 1000:,.0f} s apart",
        "set both by NTP: Perdure goes by the server's, and your program by this one's",
    )


def _connection(location: Location, way: Way) -> Finding:
    if way is Way.DIRECT:
        return Finding(Severity.OK, "nothing between this machine and the server")
    plain = "" if way is Way.POOLED else ", and it does not follow prepared statements: each call is planned anew"
    what = f"behind a pooler{plain}"
    if plain:
        return Finding(Severity.WARNING, what, "use PgBouncer 1.21 or newer with max_prepared_statements")
    if location.listen is None:
        return Finding(Severity.OK, what, "give the server's own URL as ?listen=… for wake-ups")
    return Finding(Severity.OK, what)


def _rights(rows: Sequence[Any]) -> Iterator[Finding]:
    missing = [row["what"] for row in rows]
    if not missing:
        yield Finding(Severity.OK, "all rights that are needed")
        return
    yield Finding(
        Severity.PROBLEM,
        f"this user lacks rights: {shortened(missing, '; ', 3)}",
        f"GRANT {missing[0]} TO it, and the others; or have it own the schema",
    )


async def _schema(location: Location) -> list[Finding]:
    if missing := await pending(location):
        what = f"the schema {location.schema!r} lacks {shortened([each.name for each in missing], ', ', 5)}"
        return [Finding(Severity.PROBLEM, what, "run `perdure migrate`")]
    try:
        return list(_drifted(await drift(location)))
    except StoreError as error:
        if isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
            return [
                Finding(
                    Severity.OK,
                    "the schema was not compared with what the migrations make: this user may not make schemas",
                    "run this as a user that may, such as the one that migrates",
                )
            ]
        raise


def _drifted(found: Drift) -> Iterator[Finding]:
    advice = "put it back as `perdure migrate --print` on an empty database shows it"
    if found.missing:
        yield Finding(Severity.PROBLEM, f"missing from the schema: {shortened(found.missing, ', ', 5)}", advice)
    if found.changed:
        yield Finding(Severity.PROBLEM, f"somebody changed the schema: {shortened(found.changed, ', ', 5)}", advice)
    if found.extra:
        yield Finding(
            Severity.WARNING,
            f"not of this library: {shortened(found.extra, ', ', 5)}",
            "keep tables, indexes, triggers and functions of your own in another schema",
        )
    if not (found.missing or found.changed or found.extra):
        yield Finding(Severity.OK, f"schema version {migrations()[-1].version}, as it was made")


def _settings(found: Mapping[str, str]) -> Iterator[Finding]:
    bad = [
        ("fsync", found["fsync"] == "off", Severity.PROBLEM, "a crash of the machine may destroy the database", "on"),
        (
            "full_page_writes", found["full_page_writes"] == "off", Severity.WARNING,
            "a crash of the machine may destroy the database, unless its file system never tears pages", "on",
        ),
        (
            "synchronous_commit", found["synchronous_commit"] == "off", Severity.WARNING,
            "the last commits may be lost in a crash, so that steps run again that were kept", "on",
        ),
        ("autovacuum", found["autovacuum"] == "off", Severity.PROBLEM, "tables and claims get slower and slower", "on"),
        (
            "transaction_timeout", 0 < int(found.get("transaction_timeout", "0")) < _SHORT, Severity.WARNING,
            "transactions of yours with starts or steps in them, and calls behind a pooler, may be ended", "0",
        ),
        ("track_counts", found["track_counts"] == "off", Severity.PROBLEM, "autovacuum finds nothing to do", "on"),
        (
            "default_transaction_read_only", found["default_transaction_read_only"] == "on", Severity.PROBLEM,
            "nothing can be written", "off",
        ),
        (
            "default_transaction_isolation", found["default_transaction_isolation"] != "read committed",
            Severity.WARNING,
            "transactions of yours can't start runs with unique keys or keep steps, and behind a pooler no store opens",
            "'read committed'",
        ),
        (
            "work_mem", int(found["work_mem"]) < _LITTLE_MEMORY, Severity.WARNING,
            "lists and counts are sorted on disk", "'4MB'",
        ),
    ]  # fmt: skip
    hurting = [
        Finding(how, f"{name} is {found[name]}: {why}", f"SET it to {good}")
        for name, hurts, how, why, good in bad
        if hurts
    ]
    yield from hurting
    if found["idle_in_transaction_session_timeout"] == "0":
        yield Finding(
            Severity.OK,
            "sessions of others may stay idle in a transaction for ever",
            "set idle_in_transaction_session_timeout, such as '60s': an open transaction keeps dead rows",
        )
    if not hurting:
        yield Finding(Severity.OK, "no setting that hurts")


def _connections(used: int, most: int, own: int, limit: int) -> Iterator[Finding]:
    what = f"{used} of {most} connections are in use"
    if used < most * _FULL:
        yield Finding(Severity.OK, what)
    else:
        yield Finding(
            Severity.WARNING, what, "raise max_connections, lower ?pool=… of the store, or put PgBouncer before it"
        )
    if limit >= 0 and (own >= limit * _FULL or limit < _FEW):
        yield Finding(
            Severity.WARNING,
            f"this user has {own} of the {counted(limit, 'connection')} that it may have in this database",
            f"a worker process has up to {_FEW} with ?pool=4: raise CONNECTION LIMIT of the role or of the database",
        )


async def _held(connection: Connection, sql: Mapping[str, str]) -> list[Finding]:
    findings: list[Finding] = []
    for row in await connection.fetch(sql["snapshots"], _OLD):
        who = f"process {row['pid']} ({row['application']}, user {row['role']}, {row['state'] or 'unknown'})"
        findings.append(
            Finding(
                Severity.WARNING,
                f"{who} has held a snapshot for {_lasting(row['age'])}: what ended since can't be cleared away",
                f"end its transaction, or SELECT pg_terminate_backend({row['pid']})",
            )
        )
    findings += [
        Finding(
            Severity.WARNING,
            f"transaction {row['gid']!r} of {row['role']} is prepared for {_lasting(row['age'])} and keeps dead rows",
            "COMMIT PREPARED or ROLLBACK PREPARED it",
        )
        for row in await connection.fetch(sql["prepared"], _OLD)
    ]
    for row in await connection.fetch(sql["slots"]):
        holds = "dead rows and " if row["holds"] else ""
        findings.append(
            Finding(
                Severity.WARNING,
                f"nobody reads replication slot {row['name']!r}: it keeps {holds}{_mebibytes(row['bytes'])} of the log",
                "start what reads it, or SELECT pg_drop_replication_slot(…)",
            )
        )
    return findings or [Finding(Severity.OK, "no old snapshot, prepared transaction or slot that keeps dead rows")]


def _tables(rows: Sequence[Any], schema: str) -> Iterator[Finding]:
    dead = [row for row in rows if row["dead"] > max(_MANY_DEAD, row["live"])]
    for row in dead:
        when = "never vacuumed" if row["vacuumed"] is None else f"vacuumed {_lasting(row['vacuumed'])} ago"
        yield Finding(
            Severity.WARNING,
            f"table {row['name']} has {row['dead']:,} dead rows beside {row['live']:,} ({when})",
            f"look who holds an old snapshot; then VACUUM {quote(schema)}.{quote(row['name'])}",
        )
    if not dead:
        yield Finding(Severity.OK, "few dead rows")


def _indexes(rows: Sequence[Any], schema: str) -> Iterator[Finding]:
    good = True
    for row in rows:
        name = f"{quote(schema)}.{quote(row['name'])}"
        if not row["valid"]:
            good = False
            yield Finding(
                Severity.PROBLEM,
                f"index {row['name']} of {row['of']} is invalid: something broke off while it was built",
                f"REINDEX INDEX CONCURRENTLY {name}; or DROP it, if its name ends with _ccnew or _ccold",
            )
        elif row["entries"] >= 0 and row["bytes"] > max(_LARGE, _BLOATED * row["entries"] * (row["width"] + 16)):
            good = False
            yield Finding(
                Severity.WARNING,
                f"index {row['name']} has {_mebibytes(row['bytes'])} for {row['entries']:,} entries",
                f"REINDEX INDEX CONCURRENTLY {name}",
            )
    if good:
        yield Finding(Severity.OK, "indexes are valid, and no larger than their entries need")


async def _work(connection: Connection, sql: Mapping[str, str], now: Millis | None) -> list[Finding]:
    now = now or int((await connection.fetch(sql["server"]))[0]["now"])
    row = (await connection.fetch(sql["work"], now))[0]
    findings = [Finding(Severity.OK, "no dead workers")]
    if row["dead"]:
        findings = [
            Finding(
                Severity.WARNING,
                f"{counted(row['dead'], 'dead worker')} {does(row['dead'], 'waits')} to be reclaimed",
                "start a worker: any one takes back their runs",
            )
        ]
    if row["rechecks"] > (_MANY_RECHECKS if row["alive"] else 0):
        findings.append(
            Finding(
                Severity.WARNING,
                f"{counted(row['rechecks'], 'note')} about groups, sessions or transactions"
                f" {does(row['rechecks'], 'waits')} to be looked after, and runs with them",
                "look at the logs of the workers: their exchanges do it"
                if row["alive"]
                else "start a worker: any one does it",
            )
        )
    return findings


async def _wake_ups(location: Location, way: Way) -> list[Finding]:
    if await hears(location):
        return [Finding(Severity.OK, "wake-ups come through")]
    advice = (
        "look whether something between drops them; workers find work by polling until then"
        if way is Way.DIRECT
        else "give the server's own URL as ?listen=…; workers find work by polling until then"
    )
    return [Finding(Severity.WARNING, "no wake-ups come through", advice)]


def _lasting(milliseconds: Millis) -> str:
    seconds = milliseconds // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
