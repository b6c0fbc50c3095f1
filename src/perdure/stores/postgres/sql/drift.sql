-- What a schema consists of, for comparison with what the migrations make.

-- name: catalog
-- Every column, constraint, index, trigger, view, sequence and function of a schema, with a text that tells all of it
-- that matters, however the schema is called. Reads the catalog only; the search path must be the schema alone, so
-- that nothing is written with its name.
WITH relation AS (
    SELECT c.oid, c.relname AS name, c.relkind AS kind FROM pg_class c WHERE c.relnamespace = to_regnamespace($1)
)
SELECT 'column ' || r.name || '.' || a.attname AS what,
       format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END || a.attidentity::text
           || coalesce(' ' || pg_get_expr(d.adbin, d.adrelid), '') AS text
FROM relation r
JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
WHERE r.kind IN ('r', 'p')
UNION ALL
SELECT 'constraint ' || r.name || '.' || n.conname, pg_get_constraintdef(n.oid, true)
FROM relation r JOIN pg_constraint n ON n.conrelid = r.oid
WHERE n.contype <> 'n'
UNION ALL
SELECT 'index ' || r.name,
       pg_get_indexdef(i.indexrelid, 0, true) || CASE WHEN i.indisvalid THEN '' ELSE ' INVALID' END
FROM relation r JOIN pg_index i ON i.indexrelid = r.oid
UNION ALL
SELECT 'trigger ' || r.name || '.' || t.tgname, pg_get_triggerdef(t.oid, true) || ' ' || t.tgenabled::text
FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
UNION ALL
SELECT 'view ' || r.name, pg_get_viewdef(r.oid, true) FROM relation r WHERE r.kind IN ('v', 'm')
UNION ALL
SELECT 'sequence ' || r.name, concat_ws(' ', format_type(s.seqtypid, NULL), s.seqincrement, s.seqcache, s.seqcycle)
FROM relation r JOIN pg_sequence s ON s.seqrelid = r.oid
UNION ALL
SELECT 'type ' || t.typname || '.' || e.enumlabel, e.enumsortorder::text
FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid
WHERE t.typnamespace = to_regnamespace($1)
UNION ALL
SELECT 'function ' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
       md5(concat_ws(' ', pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), l.lanname, p.provolatile,
                     p.prosecdef, p.proisstrict, coalesce(pg_get_function_sqlbody(p.oid), p.prosrc), g.settings,
                     -- Who may call what has the owner's rights: the administrator's matter, but not everybody.
                     p.prosecdef AND EXISTS (
                         SELECT 1 FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0
                     )))
FROM pg_proc p
JOIN pg_language l ON l.oid = p.prolang
JOIN pg_namespace n ON n.oid = p.pronamespace
CROSS JOIN LATERAL (
    -- The schema, at the head of a search path, may be called anything, and quoted or not.
    SELECT string_agg(CASE
               WHEN c.said LIKE 'search_path=%' AND starts_with(c.plain || ',', c.head || ',')
               THEN 'search_path=.' || substr(c.plain, length(c.head) + 1) ELSE c.said END, ' ' ORDER BY c.said) AS settings
    FROM (
        SELECT s AS said, replace(s, '"', '') AS plain, 'search_path=' || replace(n.nspname, '"', '') AS head
        FROM unnest(p.proconfig) AS s
    ) AS c
) AS g
WHERE p.pronamespace = to_regnamespace($1) AND p.prokind <> 'a'
