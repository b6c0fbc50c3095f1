-- Lists of runs by filters. A walk is where the runs come from: the narrowest index for what is asked, in the order of
-- the runs' numbers. A list is `numbers` or `causes`, with a walk and the filters put in; no statement takes a lock.

-- name: all
-- Walks the primary key.
run AS r CROSS JOIN lane AS l ON l.id = r.lane WHERE true

-- name: failed
-- Walks run_failed.
run AS r INDEXED BY run_failed CROSS JOIN lane AS l ON l.id = r.lane WHERE r.state = 'failed'

-- name: children
-- Walks run_child.
run AS r INDEXED BY run_child CROSS JOIN lane AS l ON l.id = r.lane WHERE r.parent = :parent

-- name: batch
-- Walks run_batch.
run AS r INDEXED BY run_batch CROSS JOIN lane AS l ON l.id = r.lane WHERE r.batch = :batch

-- name: group
-- Walks run_group, for the group on each queue.
grp AS g
CROSS JOIN run AS r INDEXED BY run_group ON r.grp = g.id
CROSS JOIN lane AS l ON l.id = r.lane
WHERE g.key = :group

-- name: cause
-- Walks failure_cause.
failure AS f INDEXED BY failure_cause
CROSS JOIN run AS r ON r.seq = f.run
CROSS JOIN lane AS l ON l.id = r.lane
WHERE f.cause = :cause

-- name: label
-- Walks label_value, for the first of the labels.
label AS b INDEXED BY label_value
CROSS JOIN run AS r ON r.seq = b.run
CROSS JOIN lane AS l ON l.id = r.lane
WHERE b.key = json_extract(:labels, '$[0][0]') AND b.value = json_extract(:labels, '$[0][1]')

-- name: filters
-- What the walk does not see to. Uses primary keys.
AND (:states IS NULL OR r.state IN (SELECT value FROM json_each(:states)))
AND (:workflow IS NULL OR l.workflow = :workflow)
AND (:queue IS NULL OR l.queue = :queue)
AND (:parent IS NULL OR r.parent = :parent)
AND (:batch IS NULL OR r.batch = :batch)
AND (:group IS NULL OR r.grp IN (SELECT id FROM grp WHERE key = :group))
AND (
    :cause IS NULL
    OR r.state = 'failed' AND coalesce((SELECT c.cause FROM failure AS c WHERE c.run = r.seq), '') = :cause
)
AND (
    :labels IS NULL
    OR NOT EXISTS (
        SELECT 1 FROM json_each(:labels) AS e
        WHERE NOT EXISTS (
            SELECT 1 FROM label AS v
            WHERE v.run = r.seq
                AND v.key = json_extract(e.value, '$[0]')
                AND v.value = json_extract(e.value, '$[1]')
        )
    )
)

-- name: newest
-- Numbers of runs, newest first.
SELECT json_group_array(seq)
FROM (
    SELECT {seq} AS seq FROM {walk} {filters}
    AND {seq} < coalesce(:after, 9223372036854775807)
    ORDER BY {seq} DESC LIMIT :limit
)

-- name: oldest
-- Numbers of runs, oldest first.
SELECT json_group_array(seq)
FROM (
    SELECT {seq} AS seq FROM {walk} {filters}
    AND {seq} > coalesce(:after, -1)
    ORDER BY {seq} LIMIT :limit
)

-- name: causes
-- Runs by workflow and cause, most first, each with the latest that ended.
SELECT json_group_array(
    json_object('workflow', workflow, 'cause', cause, 'runs', runs, 'last_at', last_at, 'example', example)
)
FROM (
    SELECT
        l.workflow AS workflow,
        coalesce((SELECT c.cause FROM failure AS c WHERE c.run = r.seq), '') AS cause,
        count(*) AS runs,
        r.finished_at AS last_at,
        r.id AS example,
        max(r.finish)
    FROM {walk} {filters}
    GROUP BY 1, 2
    ORDER BY runs DESC, last_at DESC
    LIMIT :limit
)
