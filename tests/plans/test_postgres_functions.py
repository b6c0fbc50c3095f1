"""Every function of the schema that sessions call from outside has its plans pinned, whatever the server knew of the
tables when it made them: sessions of applications live long, and plans with them."""

from __future__ import annotations

from typing import LiteralString, cast

import psycopg

from servers.postgres import migrated_postgres

PINNED = {"plan_cache_mode", "enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan", "jit"}
UNPINNED = {
    "here", "is_over", "clock_ms",                                          # look at no table
    "renew", "register", "served", "unpaused",                              # look at workers, leases, lanes and scopes
    "limits", "schedules", "put_schedule", "pause_schedule", "remove_schedule",  # look at scopes and schedules
    "checkpoints_of", "signals_of",                                         # their plans are looked at in test_plans
}  # fmt: skip
"""Functions that look at no table that grows with the number of runs."""

_CALLED = """
SELECT p.proname, array(SELECT split_part(s, '=', 1) FROM unnest(p.proconfig) AS s)
FROM pg_proc AS p
WHERE p.pronamespace = 'perdure'::regnamespace
    AND (p.prosecdef OR EXISTS (SELECT 1 FROM unnest(p.proconfig) AS s WHERE s LIKE 'search_path=%'))
"""


def test_plans_of_functions_that_are_called_from_outside_are_pinned() -> None:
    with psycopg.connect(migrated_postgres(__name__)) as connection:
        called = connection.execute(_CALLED).fetchall()
    assert len(called) > 20
    lacking = {name: sorted(PINNED - {*settings}) for name, settings in called if name not in UNPINNED}
    assert {name: settings for name, settings in lacking.items() if settings} == {}


_GROW = """
INSERT INTO perdure.run (seq, id, lane, priority, max_crashes, created_at, ties, input)
SELECT -i, 'f' || i, 1, 0, 5, 0, 0, 'null' FROM generate_series(1, 20000) AS i;
INSERT INTO perdure.live (seq, place, lane, priority, max_crashes, ties, state)
SELECT -i, -i, 1, 0, 5, 0, 'waiting' FROM generate_series(1, 20000) AS i;
INSERT INTO perdure.ended (seq, finish, finished_at, lane, attempt, crashes, ties, state)
SELECT -20000 - i, i, 0, 1, 1, 0, 0, 'succeeded' FROM generate_series(1, 20000) AS i;
"""
CALLS = {
    "plain": "start('ship')",
    "id": "start('ship', id => 'i%s')",
    "unique": "start('ship', unique_key => 'k')",
    "throttle": "start('ship', unique_key => 't%s', throttle => '1 min')",
    "group": "start('ship', group_key => 'g%s')",
    "parent": "start('ship', parent => 'first')",
    "signal": "signal('first', 'go', id => 's%s')",
    "cancel": "cancel('first')",
}


def test_calls_of_a_session_that_saw_the_tables_when_they_were_tiny() -> None:
    with psycopg.connect(migrated_postgres(f"{__name__} grown"), autocommit=True) as connection:
        for table in ("run", "live", "ended"):
            connection.execute(f"ALTER TABLE perdure.{table} SET (autovacuum_enabled = off)")
        connection.execute("SELECT perdure.start('ship', '{}', id => 'first')")
        connection.execute("ANALYZE")

        def read(way: str, number: int) -> int:
            """How many rows and entries of indexes a call reads."""
            call = f"SELECT perdure.{CALLS[way].replace('%s', str(number))}"
            with connection.transaction():
                connection.execute(cast(LiteralString, call))
                return connection.execute(
                    "SELECT sum(pg_stat_get_xact_tuples_returned(c.oid))::int FROM pg_class AS c"
                    " WHERE c.relnamespace = 'perdure'::regnamespace"
                ).fetchall()[0][0]

        for number in range(8):  # More than five, after which a plan is kept.
            for way in CALLS:
                read(way, number)
        connection.execute(_GROW)
        assert {way: read(way, 9) for way in CALLS if read(way, 10) > 1_000} == {}
