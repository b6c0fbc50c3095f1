-- Which migrations a schema has, and applying one. Run by `migrate.py`, each `apply` step in one transaction.

-- name: exists
-- Whether the schema is there. Reads the catalog itself: `to_regnamespace` and the like answer from a cache, which a
-- transaction that waited for the lock below would not find changed.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)

-- name: applied
-- What was applied, in order. Reads a table of a few rows; fails when it is not there.
SELECT version, name, oldest FROM perdure.migration ORDER BY version

-- name: booked
-- Whether the table of what was applied is there. Reads the catalog itself, as `exists` does.
SELECT EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = 'migration'
)

-- name: settle_in
-- Settings of the transaction: whose tables are meant, how long it waits for a lock, and no limit for the work itself.
SELECT set_config('search_path', $1, true), set_config('lock_timeout', $2, true),
       set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '60s', true)

-- name: lock
-- One process at a time for each schema; let go at the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))
