-- What `perdure doctor` looks at. Reads only, and locks nothing; what a user may not see of others is NULL.

-- name: server
-- The version, the clock in milliseconds, and whether this user sees what others do.
SELECT
    current_setting('server_version') AS version,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now,
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_others;

-- name: settings
-- Settings as sessions of this user begin with them. Reads the settings.
SELECT name, reset_val AS value FROM pg_settings
WHERE name IN (
    'autovacuum', 'default_transaction_isolation', 'default_transaction_read_only', 'fsync', 'full_page_writes',
    'idle_in_transaction_session_timeout', 'synchronous_commit', 'track_counts', 'transaction_timeout', 'work_mem'
);

-- name: connections
-- How many connections there are, and how many there may be for those who are no superusers; how many this user has in
-- this database, and may have (-1 for no limit). Walks the sessions.
SELECT
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS most,
    (SELECT count(*) FROM pg_stat_activity WHERE usename = session_user AND datname = current_database()) AS own,
    coalesce(least(
        (SELECT nullif(r.rolconnlimit, -1) FROM pg_roles AS r WHERE r.rolname = session_user AND NOT r.rolsuper),
        (SELECT nullif(d.datconnlimit, -1) FROM pg_database AS d WHERE d.datname = current_database())
    ), -1) AS "limit";

-- name: snapshots
-- Sessions that look at the database as it was longer than $1 milliseconds ago, the oldest first: nothing that was
-- removed since can be cleared away. Walks the sessions.
SELECT
    a.pid, coalesce(nullif(a.application_name, ''), 'no name') AS application, a.usename::text AS role, a.state,
    (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::bigint AS age
FROM pg_stat_activity AS a
WHERE a.backend_xmin IS NOT NULL AND a.backend_type IN ('client backend', 'walsender')
    AND (a.datname = current_database() OR a.datname IS NULL)
    AND a.pid <> pg_backend_pid()
    AND a.xact_start < clock_timestamp() - make_interval(secs => $1::bigint / 1000.0)
ORDER BY a.xact_start LIMIT 5;

-- name: prepared
-- Prepared transactions of this database that are older than $1 milliseconds. Walks them.
SELECT p.gid, p.owner::text AS role, (extract(epoch FROM clock_timestamp() - p.prepared) * 1000)::bigint AS age
FROM pg_prepared_xacts AS p
WHERE p.database = current_database() AND p.prepared < clock_timestamp() - make_interval(secs => $1::bigint / 1000.0)
ORDER BY p.prepared LIMIT 5;

-- name: slots
-- Replication slots that nobody reads. Walks the slots, which are few.
SELECT
    s.slot_name::text AS name, s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL AS holds,
    coalesce(pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, s.restart_lsn
    ), 0)::bigint AS bytes
FROM pg_replication_slots AS s
WHERE NOT s.active
ORDER BY 1;

-- name: tables
-- Tables of the schema with how many of their rows are dead, and for how long (milliseconds) they were not vacuumed.
-- Reads the statistics.
SELECT
    t.relname::text AS name, t.n_live_tup AS live, t.n_dead_tup AS dead,
    (extract(epoch FROM clock_timestamp() - greatest(t.last_vacuum, t.last_autovacuum)) * 1000)::bigint AS vacuumed
FROM pg_stat_user_tables AS t
WHERE t.schemaname = $1
ORDER BY t.n_dead_tup DESC;

-- name: indexes
-- Indexes of the schema: their bytes, their entries as they were counted last, and whether they can be used. Reads the
-- catalog.
SELECT
    c.relname::text AS name, t.relname::text AS of, i.indisvalid AS valid, c.reltuples::bigint AS entries,
    pg_relation_size(c.oid) AS bytes,
    coalesce((SELECT sum(s.avg_width) FROM pg_stats AS s
        WHERE s.schemaname = $1 AND s.tablename = t.relname
            AND s.attname IN (SELECT a.attname FROM pg_attribute AS a WHERE a.attrelid = c.oid)), 32)::int AS width
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_class AS t ON t.oid = i.indrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1
ORDER BY c.relname;

-- name: rights
-- What this user lacks to work on the schema, as it is granted; functions that run with the owner's rights are what
-- applications call. Reads the catalog.
SELECT 'USAGE ON SCHEMA ' || quote_ident($1) AS what WHERE NOT has_schema_privilege($1, 'USAGE')
UNION ALL
SELECT r.name || ' ON ' || quote_ident($1) || '.' || quote_ident(c.relname)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS r (name)
WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname <> 'migration' AND NOT has_table_privilege(c.oid, r.name)
UNION ALL
SELECT 'USAGE, SELECT ON SEQUENCE ' || quote_ident($1) || '.' || quote_ident(c.relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'S'
    AND NOT (has_sequence_privilege(c.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'SELECT'))
UNION ALL
SELECT 'EXECUTE ON FUNCTION ' || p.oid::regprocedure::text
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = $1 AND NOT p.prosecdef AND NOT has_function_privilege(p.oid, 'EXECUTE');

-- name: work
-- Workers whose lease has ended, workers that live, and groups and sessions that are to be looked after again. Walks the
-- leases, which are few, and the notes.
SELECT
    (SELECT count(*) FROM perdure.lease AS e WHERE e.until <= $1) AS dead,
    (SELECT count(*) FROM perdure.lease AS e WHERE e.until > $1) AS alive,
    (SELECT count(*) FROM (SELECT 1 FROM perdure.recheck LIMIT 10000) AS r) AS rechecks;
