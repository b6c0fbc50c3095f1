-- Lists of runs by filters. A walk is where the runs come from: the narrowest index for what is asked, in the order of
-- the runs' numbers. A list is `numbers` or `causes`, with a walk and the filters put in; no statement locks a row.

-- name: all
-- Walks the primary key.
perdure.run AS r WHERE true

-- name: failed
-- Walks ended_failed.
perdure.ended AS f JOIN perdure.run AS r ON r.seq = f.seq WHERE f.state = 'failed'

-- name: children
-- Walks run_child.
perdure.run AS r WHERE r.parent = $4

-- name: batch
-- Walks run_batch.
perdure.run AS r WHERE r.batch = $5

-- name: group
-- Walks run_group, for the group on each queue.
perdure.grp AS g JOIN perdure.run AS r ON r.grp = g.id WHERE g.key = $6

-- name: cause
-- Walks ended_cause.
perdure.ended AS f JOIN perdure.run AS r ON r.seq = f.seq WHERE f.cause = $7

-- name: label
-- Walks label_value, for the first of the labels.
perdure.label AS b JOIN perdure.run AS r ON r.seq = b.run
WHERE b.key = ($8::text[])[1] AND b.value = ($9::text[])[1]

-- name: live
-- Walks the primary key of live: all states that are asked for are those of runs that have not ended.
perdure.live AS v JOIN perdure.run AS r ON r.seq = v.seq WHERE v.state = ANY ($1::text[])

-- name: running
-- Walks live_owned, and sorts: what is running is few beside what waits for it.
(SELECT seq FROM perdure.live WHERE state = 'running' OFFSET 0) AS v JOIN perdure.run AS r ON r.seq = v.seq WHERE true

-- name: filters
-- What the walk does not see to. Uses primary keys.
AND (
    $1::text[] IS NULL
    OR coalesce(
        (SELECT l.state FROM perdure.live AS l WHERE l.seq = r.seq),
        (SELECT d.state FROM perdure.ended AS d WHERE d.seq = r.seq)
    ) = ANY ($1)
)
AND ($2::text IS NULL OR (SELECT a.workflow FROM perdure.lane AS a WHERE a.id = r.lane) = $2)
AND ($3::text IS NULL OR (SELECT a.queue FROM perdure.lane AS a WHERE a.id = r.lane) = $3)
AND ($4::text IS NULL OR r.parent = $4)
AND ($5::text IS NULL OR r.batch = $5)
AND ($6::text IS NULL OR r.grp IN (SELECT x.id FROM perdure.grp AS x WHERE x.key = $6))
AND (
    $7::text IS NULL
    OR EXISTS (
        SELECT 1 FROM perdure.ended AS d WHERE d.seq = r.seq AND d.state = 'failed' AND coalesce(d.cause, '') = $7
    )
)
AND (
    $8::text[] IS NULL
    OR NOT EXISTS (
        SELECT 1 FROM unnest($8, $9::text[]) AS e (key, value)
        WHERE NOT EXISTS (
            SELECT 1 FROM perdure.label AS v WHERE v.run = r.seq AND v.key = e.key AND v.value = e.value
        )
    )
)

-- name: newest
-- Numbers of runs, newest first.
SELECT {seq} AS seq FROM {walk} {filters}
AND {seq} < coalesce($10, 9223372036854775807)
ORDER BY {seq} DESC LIMIT $11

-- name: oldest
-- Numbers of runs, oldest first.
SELECT {seq} AS seq FROM {walk} {filters}
AND {seq} > coalesce($10, -1)
ORDER BY {seq} LIMIT $11

-- name: causes
-- Runs by workflow and cause, most first, each with the latest that ended, as JSON.
SELECT json_agg(json_build_object(
    'workflow', workflow, 'cause', cause, 'runs', runs, 'last_at', last_at, 'example', example
))::text
FROM (
    SELECT
        a.workflow, coalesce(x.cause, '') AS cause, count(*) AS runs, max(x.finished_at) AS last_at,
        (array_agg(r.id ORDER BY x.finish DESC))[1] AS example
    FROM (SELECT r.* FROM {walk} {filters} AND $10::bigint IS NULL) AS r
    JOIN perdure.lane AS a ON a.id = r.lane
    JOIN perdure.ended AS x ON x.seq = r.seq
    GROUP BY 1, 2
    ORDER BY runs DESC, last_at DESC
    LIMIT $11
) AS grouped
