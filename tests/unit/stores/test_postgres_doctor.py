"""What `perdure doctor` finds wrong with a store on PostgreSQL, and what it says is to be done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from conformance.kit import start, worker
from perdure.stores import open_store
from perdure.stores.base import Finding, Severity, Store
from perdure.stores.postgres import doctor, parse_url
from perdure.stores.postgres.connect import Way
from servers.postgres import Postgres, migrated_postgres, own_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return migrated_postgres(str(tmp_path_factory.mktemp("doctor")))


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = open_store(url)
    yield store
    await store.close()


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of tests are quick ones: these settings are looked at elsewhere."""
    settings = doctor._settings

    def without_disk(found: dict[str, str]) -> Iterator[Finding]:
        return settings({**found, "fsync": "on", "full_page_writes": "on"})

    monkeypatch.setattr(doctor, "_settings", without_disk)


def bad(findings: list[Finding]) -> list[str]:
    return [finding.what for finding in findings if finding.severity is not Severity.OK]


async def found(store: Store, words: str) -> Finding:
    """The one finding with these words; it says what to do."""
    [finding] = [finding for finding in await store.check() if words in finding.what]
    assert finding.severity is Severity.OK or finding.advice
    return finding


async def test_a_sound_store_has_nothing_wrong(store: Store, sound: None) -> None:
    findings = await store.check()
    assert bad(findings) == []
    told = "\n".join(finding.what for finding in findings)
    for what in (
        "PostgreSQL 1", "clocks", "nothing between", "all rights", "as it was made", "connections are in use",
        "no old snapshot", "few dead rows", "indexes are valid", "no dead workers", "wake-ups come through",
    ):  # fmt: skip
        assert what in told


async def test_somebody_who_holds_a_snapshot_is_named(
    store: Store, url: str, sound: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(url, application_name="report") as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM pg_class LIMIT 1")
        assert bad(await store.check()) == []
        monkeypatch.setattr(doctor, "_OLD", -1)
        finding = await found(store, "has held a snapshot")
        pid = connection.info.backend_pid
    assert finding.severity is Severity.WARNING
    assert f"process {pid} (report, user postgres, idle in transaction)" in finding.what
    assert f"pg_terminate_backend({pid})" in finding.advice


async def test_prepared_transactions_and_slots_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    server = own_server(settings={"max_prepared_transactions": "2"})
    server.start()
    try:
        url = server.database()
        store = open_store(url)
        await store.migrate()
        monkeypatch.setattr(doctor, "_OLD", -1)
        server.run("BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'forgotten'", url=url)
        server.run("SELECT pg_create_physical_replication_slot('standby', true)")
        assert "0 s" in (await found(store, "transaction 'forgotten' of postgres is prepared")).what
        assert "pg_drop_replication_slot" in (await found(store, "replication slot 'standby'")).advice
        await store.close()
    finally:
        server.remove()


async def test_indexes_that_are_missing_or_invalid(store: Store, url: str, postgres: Postgres, sound: None) -> None:
    postgres.run("DROP INDEX perdure.live_timer", url=url)
    postgres.run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'perdure.run_group'::regclass", url=url)
    assert (await found(store, "missing from the schema: index live_timer")).severity is Severity.PROBLEM
    finding = await found(store, "index run_group of run is invalid")
    assert finding.severity is Severity.PROBLEM
    assert 'REINDEX INDEX CONCURRENTLY "perdure"."run_group"' in finding.advice


async def test_what_somebody_added_or_changed(store: Store, url: str, postgres: Postgres, sound: None) -> None:
    postgres.run("CREATE TABLE perdure.mine (id int)", url=url)
    postgres.run("ALTER TABLE perdure.ended ALTER COLUMN crashes DROP NOT NULL", url=url)
    assert (await found(store, "not of this library")).severity is Severity.WARNING
    assert "column ended.crashes" in (await found(store, "somebody changed the schema")).what


async def test_a_user_without_rights(store: Store, url: str, postgres: Postgres, sound: None) -> None:
    role = f"weak_{urlsplit(url).path[1:]}"
    postgres.run(f"CREATE ROLE {role} LOGIN")
    postgres.run(f"GRANT USAGE ON SCHEMA perdure TO {role}", url=url)
    postgres.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA perdure TO {role}", url=url)
    parts = urlsplit(url)
    weak = open_store(urlunsplit(parts._replace(netloc=parts.netloc.replace("postgres@", f"{role}@"))))
    finding = await found(weak, "lacks rights")
    assert finding.severity is Severity.PROBLEM
    assert "INSERT ON perdure." in finding.what
    assert "may not make schemas" in (await found(weak, "not compared")).what
    assert "pg_read_all_stats" in (await found(weak, "does not see")).advice
    await weak.close()
    postgres.run(f"DROP OWNED BY {role}", url=url)
    postgres.run(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("default_transaction_read_only = on", "default_transaction_read_only is on: nothing can be written"),
        ("transaction_timeout = '100ms'", "transaction_timeout is 100: "),
        ("standard_conforming_strings = off", "as it was made"),
        ("idle_session_timeout = '1s'", "no setting that hurts"),
    ],
)
async def test_settings_of_a_database_are_told_and_in_nobodys_way(
    store: Store, url: str, postgres: Postgres, sound: None, setting: str, words: str
) -> None:
    if "transaction_timeout" in setting and not postgres.run("SHOW server_version_num")[0][0].startswith(("17", "18")):
        pytest.skip("there is no transaction_timeout before PostgreSQL 17")
    postgres.run(f"ALTER DATABASE {urlsplit(url).path[1:]} SET {setting}")
    await found(store, words)
    assert [what for what in bad(await store.check()) if words not in what] == []


async def test_what_can_not_be_looked_at_is_a_finding(store: Store, url: str, postgres: Postgres) -> None:
    role = f"nobody_{urlsplit(url).path[1:]}"
    postgres.run(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1")
    parts = urlsplit(url)
    weak = open_store(urlunsplit(parts._replace(netloc=parts.netloc.replace("postgres@", f"{role}@"))))
    try:
        assert "USAGE ON SCHEMA perdure" in (await found(weak, "lacks rights")).what
        assert "does not permit that" in (await found(weak, "workers can't be looked at")).what
        assert "has no connection left" in (await found(weak, "the schema can't be looked at")).what
        assert "CONNECTION LIMIT" in (await found(weak, "1 of the 1 connection that it may have")).advice
    finally:
        await weak.close()
        postgres.run(f"DROP ROLE {role}")


async def test_dead_workers_and_what_nobody_looks_after(
    store: Store, url: str, postgres: Postgres, sound: None
) -> None:
    await worker(store)
    await store.enqueue([start(group="g")])
    postgres.run("INSERT INTO perdure.recheck (grp) SELECT id FROM perdure.grp", url=url)
    assert bad(await store.check()) == []
    postgres.run("UPDATE perdure.lease SET until = 0", url=url)
    assert (await found(store, "1 dead worker waits to be reclaimed")).advice.startswith("start a worker")
    assert (await found(store, "1 note about groups, sessions or transactions waits")).advice.startswith(
        "start a worker"
    )


async def test_wake_ups_that_do_not_come(store: Store, sound: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(*_: object) -> bool:
        return False

    monkeypatch.setattr(doctor, "hears", deaf)
    assert (await found(store, "no wake-ups")).severity is Severity.WARNING


async def test_what_is_between() -> None:
    location = parse_url("postgresql://db/shop")
    assert "listen" in doctor._connection(location, Way.POOLED).advice
    assert doctor._connection(location, Way.POOLED_PLAIN).severity is Severity.WARNING


async def test_clocks_that_differ() -> None:
    assert doctor.clocks(1_000, 1_050, 1_020).severity is Severity.OK
    assert doctor.clocks(1_000, 1_050, 1_900).severity is Severity.OK
    ahead = doctor.clocks(1_000, 1_050, 61_050)
    assert ahead.severity is Severity.WARNING
    assert "60 s apart" in ahead.what
    assert "60 s apart" in doctor.clocks(61_000, 61_050, 1_000).what


async def test_settings_that_hurt() -> None:
    good = {
        "autovacuum": "on", "default_transaction_isolation": "read committed", "default_transaction_read_only": "off",
        "fsync": "on", "full_page_writes": "on", "idle_in_transaction_session_timeout": "60000",
        "synchronous_commit": "on", "track_counts": "on", "transaction_timeout": "0", "work_mem": "4096",
    }  # fmt: skip
    hurt = {
        "autovacuum": "off", "default_transaction_isolation": "serializable", "default_transaction_read_only": "on",
        "fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "track_counts": "off",
        "transaction_timeout": "50", "work_mem": "64",
    }  # fmt: skip
    assert [finding.what for finding in doctor._settings(good)] == ["no setting that hurts"]
    for name, value in hurt.items():
        [finding] = doctor._settings({**good, name: value})
        assert finding.severity is not Severity.OK
        assert finding.what.startswith(f"{name} is {value}: ")
        assert finding.advice
    told = list(doctor._settings({**good, "idle_in_transaction_session_timeout": "0"}))
    assert "60s" in told[0].advice


async def test_a_server_that_is_full() -> None:
    assert [each.severity for each in doctor._connections(89, 100, 1, -1)] == [Severity.OK]
    assert next(doctor._connections(95, 100, 1, -1)).severity is Severity.WARNING
    assert [each.severity for each in doctor._connections(5, 100, 5, 20)] == [Severity.OK]
    for own, limit in ((19, 20), (1, 2)):
        assert f"{own} of the {limit} connections" in list(doctor._connections(20, 100, own, limit))[-1].what


async def test_tables_full_of_dead_rows() -> None:
    rows = [
        {"name": "live", "live": 10, "dead": 350_000, "vacuumed": None},
        {"name": "run", "live": 10, "dead": 30_000, "vacuumed": 180_000},
        {"name": "ended", "live": 1_000_000, "dead": 30_000, "vacuumed": None},
    ]
    live, run = doctor._tables(rows, "perdure")
    assert live.what == "table live has 350,000 dead rows beside 10 (never vacuumed)"
    assert "vacuumed 3 min ago" in run.what
    assert 'VACUUM "perdure"."live"' in live.advice


async def test_indexes_that_are_larger_than_their_entries_need() -> None:
    row = {"name": "live_ready", "of": "live", "valid": True, "entries": 1_000, "bytes": 200 << 20, "width": 24}
    [finding] = doctor._indexes([row], "perdure")
    assert finding.what == "index live_ready has 200 MiB for 1,000 entries"
    assert finding.advice == 'REINDEX INDEX CONCURRENTLY "perdure"."live_ready"'
    [unknown] = doctor._indexes([{**row, "entries": -1}], "perdure")
    assert unknown.severity is Severity.OK, "nobody has counted them"
    [fine] = doctor._indexes([{**row, "entries": 5_000_000}], "perdure")
    assert fine.severity is Severity.OK


@pytest.mark.parametrize("rows", [0, -1])
async def test_a_server_that_does_not_know_how_many_rows_there_are(
    store: Store, url: str, postgres: Postgres, sound: None, rows: int
) -> None:
    """After a VACUUM under somebody's snapshot, or before any ANALYZE."""
    await store.enqueue([start(f"r{number}") for number in range(20)])
    postgres.run(
        f"UPDATE pg_class SET reltuples = {rows}"
        " WHERE relnamespace = 'perdure'::regnamespace AND relkind IN ('r', 'i')",
        url=url,
    )
    assert [each.what for each in await store.check() if each.severity is not Severity.OK] == []
