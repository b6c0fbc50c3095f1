-- Unique keys: who holds them, and what a start does to the run that does. Only `replace` needs the write lock.

-- name: ids
-- Of some ids, those that are runs. Uses the unique index of run ids.
SELECT json_group_array(r.id) FROM json_each(:ids) AS e CROSS JOIN run AS r ON r.id = e.value;

-- name: holders
-- For pairs of workflow and key, each with a time: the live run that holds the key, and those that took it after that
-- time. Walks run_unique, the live runs of a key and those that ended after that time.
WITH asked AS MATERIALIZED (
    SELECT
        key AS place,
        json_extract(value, '$[0]') AS workflow,
        json_extract(value, '$[1]') AS unique_key,
        json_extract(value, '$[2]') AS since
    FROM json_each(:keys)
)
SELECT json_group_array(
    json_array(place, seq, id, json(iif(begun, 'true', 'false')), json(iif(holds, 'true', 'false')))
)
FROM (
    SELECT
        a.place, r.seq, r.id, r.started_at IS NOT NULL AS begun, r.debounced IS NULL OR r.started_at IS NULL AS holds,
        r.created_at > a.since AS recent
    FROM asked AS a
    CROSS JOIN run AS r INDEXED BY run_unique ON r.unique_key = a.unique_key AND r.finished_at IS NULL
    CROSS JOIN lane AS l ON l.id = r.lane AND l.workflow = a.workflow
    UNION ALL
    SELECT a.place, r.seq, r.id, true, false, r.created_at > a.since
    FROM asked AS a
    CROSS JOIN run AS r INDEXED BY run_unique ON r.unique_key = a.unique_key AND r.finished_at > a.since
    CROSS JOIN lane AS l ON l.id = r.lane AND l.workflow = a.workflow
)
WHERE holds OR recent;

-- name: replace
-- Gives another due time to runs that have not begun. One that waits for something goes on waiting, and one that a rate
-- put off does not begin before that lets it. Uses the primary key.
UPDATE run SET
    state = CASE
        WHEN run.state = 'waiting' OR (run.held = 'rate' AND coalesce(e.wake_at, 0) <= run.wake_at) THEN run.state
        ELSE e.state
    END,
    wake_at = CASE
        WHEN run.state = 'waiting' OR (run.held = 'rate' AND coalesce(e.wake_at, 0) <= run.wake_at) THEN run.wake_at
        ELSE e.wake_at
    END,
    held = CASE WHEN run.held = 'rate' AND e.wake_at > run.wake_at THEN NULL ELSE run.held END,
    deadline = CASE WHEN run.state <> 'waiting' THEN e.deadline END,
    due = CASE WHEN run.state = 'waiting' THEN e.wake_at END,
    timeout = CASE WHEN run.state = 'waiting' THEN e.deadline - coalesce(e.wake_at, :now) END
FROM (
    SELECT
        json_extract(value, '$[0]') AS seq,
        json_extract(value, '$[1]') AS state,
        json_extract(value, '$[2]') AS wake_at,
        json_extract(value, '$[3]') AS deadline
    FROM json_each(:runs)
) AS e
WHERE run.seq = e.seq;

-- name: taken
-- Of runs that ended, those whose key another live run holds, or one before them in the list. Uses run_unique.
SELECT json_group_array(r.seq)
FROM json_each(:runs) AS e
CROSS JOIN run AS r ON r.seq = e.value
CROSS JOIN lane AS l ON l.id = r.lane
WHERE r.unique_key IS NOT NULL
    AND (r.debounced IS NULL OR r.started_at IS NULL)
    AND (
        EXISTS (
            SELECT 1
            FROM run AS o INDEXED BY run_unique CROSS JOIN lane AS m ON m.id = o.lane
            WHERE o.unique_key = r.unique_key
                AND o.finished_at IS NULL
                AND m.workflow = l.workflow
                AND (o.debounced IS NULL OR o.started_at IS NULL)
        )
        OR EXISTS (
            SELECT 1
            FROM json_each(:runs) AS b CROSS JOIN run AS o ON o.seq = b.value CROSS JOIN lane AS m ON m.id = o.lane
            WHERE b.key < e.key
                AND o.unique_key = r.unique_key
                AND m.workflow = l.workflow
                AND (o.debounced IS NULL OR o.started_at IS NULL)
        )
    );
