"""Every function of the schema that sessions call from outside has its plans pinned, whatever the server knew of the
tables when it made them: sessions of applications live long, and plans with them."""

from __future__ import annotations

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
