"""The schema of a PostgreSQL store: applied by many at once or by psql, refused, and compared."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from msgspec.structs import replace

from perdure.errors import SchemaTooNew, StoreError, StoreUnavailable
from perdure.stores.postgres import migrate
from perdure.stores.postgres.connect import connect
from perdure.stores.postgres.drift import Drift, drift
from perdure.stores.postgres.pool import Connections
from perdure.stores.postgres.sql import Migration, migrations, parse
from perdure.stores.postgres.url import Location, parse_url, quote
from servers.postgres import Postgres, installed

FIRST = Migration(
    1,
    "0001_first",
    """-- The first one.
-- Locks: none.

BEGIN;
CREATE TABLE migration (
    version int PRIMARY KEY, name text NOT NULL, oldest int NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE thing (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL DEFAULT 'none');
CREATE INDEX thing_body ON thing (body) WHERE id > 0;
CREATE FUNCTION things() RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT
RETURN (SELECT count(*) FROM thing);
INSERT INTO migration (version, name, oldest) VALUES (1, '0001_first', 1);
COMMIT;
""",
)
SECOND = Migration(
    2,
    "0002_more",
    """BEGIN;
ALTER TABLE thing ADD more int;
INSERT INTO migration (version, name, oldest) VALUES (2, '0002_more', 1);
COMMIT;
""",
)
THIRD = Migration(
    3, "0003_other", "BEGIN;\nINSERT INTO migration (version, name, oldest) VALUES (3, '0003_other', 3);\nCOMMIT;\n"
)
BOTH = [FIRST, SECOND]


@pytest.fixture(params=["perdure", 'Odd "name"'])
def location(request: pytest.FixtureRequest, postgres_url: str) -> Location:
    return parse_url(f"{postgres_url}?schema={request.param}")


async def verify(location: Location, known: list[Migration]) -> None:
    """As an open store does it."""
    connections = Connections(location)
    try:
        await migrate.verify(location, connections.call, known)
    finally:
        await connections.close()


@pytest.mark.anyio
async def test_what_is_missing_is_applied_once(location: Location) -> None:
    assert [each.name for each in await migrate.pending(location, BOTH)] == ["0001_first", "0002_more"]
    with pytest.raises(StoreError, match=r"lacks 0001_first, 0002_more in its schema .* run `perdure migrate`"):
        await verify(location, BOTH)
    assert await migrate.migrate(location, [FIRST]) == ["0001_first"]
    assert await migrate.migrate(location, BOTH) == ["0002_more"]
    assert await migrate.migrate(location, BOTH) == []
    await verify(location, BOTH)


@pytest.mark.anyio
async def test_ten_at_once(location: Location) -> None:
    applied = await asyncio.gather(*(migrate.migrate(location, BOTH) for _ in range(10)))
    assert sorted(name for names in applied for name in names) == ["0001_first", "0002_more"]


@pytest.mark.anyio
async def test_older_code_runs_where_the_newer_schema_lets_it(location: Location) -> None:
    await migrate.migrate(location, BOTH)
    await verify(location, [FIRST])
    assert await migrate.migrate(location, [FIRST]) == []
    await migrate.migrate(location, [*BOTH, THIRD])
    for refused in (migrate.migrate, verify, migrate.pending):
        with pytest.raises(SchemaTooNew, match="made by a newer Perdure; this one knows versions up to 2"):
            await refused(location, BOTH)


@pytest.mark.anyio
async def test_no_lock_is_waited_for_long(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    await migrate.migrate(location, [FIRST])
    monkeypatch.setattr(migrate, "_LOCK_WAIT", 10)
    holder = await connect(location)
    await holder.execute("BEGIN; SELECT * FROM thing")
    monkeypatch.setattr(migrate, "_PATIENCE", 0)
    with pytest.raises(StoreUnavailable, match="has a lock that somebody holds for long"):
        await migrate.migrate(location, BOTH)
    monkeypatch.setattr(migrate, "_PATIENCE", 60)
    migrating = asyncio.create_task(migrate.migrate(location, BOTH))
    # What comes while it waits gets through in between: it would wait behind the migration for ever otherwise.
    other = await connect(location)
    assert await other.fetchval("SELECT count(*) FROM thing") == 0
    await holder.execute("COMMIT")
    assert await migrating == ["0002_more"]
    await holder.close()
    await other.close()


@pytest.mark.anyio
async def test_a_migration_that_fails_leaves_nothing(location: Location) -> None:
    broken = Migration(2, "0002_broken", "BEGIN;\nCREATE TABLE half ();\nSELECT 1 / 0;\nCOMMIT;\n")
    with pytest.raises(StoreError, match="division by zero"):
        await migrate.migrate(location, [FIRST, broken])
    assert await drift(location, [FIRST]) == Drift([], [], [])
    assert await migrate.pending(location, [FIRST]) == []


@pytest.mark.anyio
async def test_a_schema_that_is_somebody_elses(location: Location, postgres: Postgres) -> None:
    postgres.run(f"CREATE SCHEMA {quote(location.schema)} CREATE TABLE thing (id int)", url=location.url)
    with pytest.raises(
        StoreError, match=r"has something else of that name in the schema .* one of its own with \?schema="
    ):
        await migrate.migrate(location, BOTH)


@pytest.mark.anyio
async def test_without_the_right_to_make_a_schema(location: Location, postgres: Postgres) -> None:
    name = f"poor_{location.url.rpartition('/')[2]}"
    postgres.run(f"CREATE ROLE {name} LOGIN")
    try:
        poor = parse_url(location.url.replace("postgres@", f"{name}@"))
        with pytest.raises(StoreError, match="let the owner of the database GRANT CREATE ON DATABASE to it"):
            await migrate.migrate(poor, BOTH)
    finally:
        postgres.run(f"DROP ROLE {name}")


async def by_psql(location: Location, file: Path, known: list[Migration]) -> None:
    """Does what `perdure migrate --print` prints."""
    psql = next(iter(installed().values())) / "psql"
    file.write_text(migrate.script(location, await migrate.pending(location, known)), encoding="utf-8")
    command = [psql, location.url, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=60, capture_output=True)


@pytest.mark.anyio
async def test_the_owner_of_a_schema_needs_no_right_to_make_one(
    location: Location, postgres: Postgres, tmp_path: Path
) -> None:
    name = f"owner_{location.url.rpartition('/')[2]}"
    postgres.run(f"CREATE ROLE {name} LOGIN")
    postgres.run(f"CREATE SCHEMA {quote(location.schema)} AUTHORIZATION {name}", url=location.url)
    owners = replace(location, url=location.url.replace("postgres@", f"{name}@"))
    try:
        await by_psql(owners, tmp_path / "first.sql", [FIRST])
        assert await migrate.migrate(owners, BOTH) == ["0002_more"]
    finally:
        postgres.run(f"DROP OWNED BY {name}", url=location.url)
        postgres.run(f"DROP ROLE {name}")


@pytest.mark.anyio
async def test_where_backslashes_mean_something_in_strings(
    location: Location, postgres: Postgres, tmp_path: Path
) -> None:
    postgres.run(f"ALTER DATABASE {location.url.rpartition('/')[2]} SET standard_conforming_strings = off")
    await by_psql(location, tmp_path / "all.sql", migrations())
    start = f"SELECT {quote(location.schema)}.start('w', id => E'a\\tb')"
    with pytest.raises(psycopg.Error, match="control character"):
        postgres.run(start, url=location.url)
    other = replace(location, schema="it's \\another")
    await by_psql(other, tmp_path / "other.sql", migrations())
    assert await drift(other) == Drift([], [], [])


@pytest.mark.anyio
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_another_encoding_is_named(postgres: Postgres, encoding: str) -> None:
    parts = urlsplit(postgres.url)
    database = f"perdure_{encoding.lower()}"
    postgres.run(f"CREATE DATABASE {database} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    url = urlunsplit(parts._replace(path=f"/{database}"))
    try:
        with pytest.raises(StoreError, match=f"whose encoding is {encoding}: Perdure needs UTF8"):
            await migrate.migrate(parse_url(url))
    finally:
        postgres.drop(url)


@pytest.mark.anyio
async def test_psql_does_the_same(location: Location, tmp_path: Path) -> None:
    await by_psql(location, tmp_path / "all.sql", BOTH)
    await verify(location, BOTH)
    assert await drift(location, BOTH) == Drift([], [], [])
    assert migrate.script(location, await migrate.pending(location, BOTH)) == ""


@pytest.mark.anyio
async def test_drift_is_what_somebody_changed(location: Location) -> None:
    await migrate.migrate(location, BOTH)
    hand = await connect(location)
    await hand.execute(
        "DROP INDEX thing_body; ALTER TABLE thing ALTER body DROP DEFAULT; ALTER TABLE thing ADD own int;"
        "CREATE OR REPLACE FUNCTION things() RETURNS bigint LANGUAGE sql RETURN 1; CREATE INDEX mine ON thing (more);"
        "ALTER TABLE thing SET (fillfactor = 50)"
    )
    await hand.close()
    assert await drift(location, BOTH) == Drift(
        missing=["index thing_body"],
        changed=["column thing.body", "function things()"],
        extra=["column thing.own", "index mine"],
    )


def test_the_files_are_well_formed() -> None:
    for number, migration in enumerate(migrations(), 1):
        assert migration.version == number
        assert f"VALUES ({number}, '{migration.name}', " in migration.body
        assert "perdure." not in migration.body


def test_statements_name_the_schema_of_the_url() -> None:
    text = "-- What for.\n\n-- name: one\n-- Locks.\nSELECT perdure.start($1) FROM perdure.run;\n"
    assert parse(text, 'a"b') == {"one": 'SELECT "a""b".start($1) FROM "a""b".run'}
