-- What clients read. No statement here takes a lock that keeps others from writing.

-- name: now
-- The store's clock, in milliseconds.
SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER);

-- name: records
-- Runs by their numbers. Uses primary keys, and run_schedule for the first run that keeps one of its schedule waiting.
SELECT json_group_array(
    json_object(
        'id', r.id,
        'workflow', l.workflow,
        'queue', l.queue,
        'priority', r.priority,
        'state', r.state,
        'attempt', r.attempt,
        'crashes', r.crashes,
        'cut_off', CASE WHEN r.cut_off AND r.finished_at IS NULL THEN json('true') ELSE json('false') END,
        'input', i.body,
        'created_at', r.created_at,
        'started_at', r.started_at,
        'finished_at', r.finished_at,
        'wake_at', r.wake_at,
        'deadline', r.deadline,
        'parent', r.parent,
        'worker', (SELECT w.name FROM worker AS w WHERE w.id = r.worker),
        'lease_until', (SELECT w.lease_until FROM worker AS w WHERE w.id = r.worker),
        'cancelling', r.cancelling,
        'held', r.held,
        'body', CASE WHEN r.state NOT IN ('running', 'waiting') THEN o.body END,
        'waits', (
            SELECT json_group_array(
                json_object(
                    'key', w.key,
                    'what', w.what,
                    'target', CASE
                        WHEN w.what = 'schedule' THEN (
                            SELECT s.id FROM run AS s INDEXED BY run_schedule
                            WHERE s.schedule = w.target AND s.finished_at IS NULL ORDER BY s.seq LIMIT 1
                        )
                        ELSE w.target
                    END,
                    'at', w.at
                )
            )
            FROM wait AS w WHERE w.run = r.seq AND r.state = 'waiting'
        ),
        'position', r.seq,
        'version', l.version,
        'group', coalesce((SELECT g.key FROM grp AS g WHERE g.id = r.grp), ''),
        'session', coalesce((SELECT s.key FROM session AS s WHERE s.id = r.session), ''),
        'unique', coalesce(r.unique_key, ''),
        'batch', coalesce(r.batch, ''),
        'labels', (SELECT json_group_object(b.key, b.value) FROM label AS b WHERE b.run = r.seq),
        'status', (SELECT s.body FROM status AS s WHERE s.run = r.seq),
        'cause', (SELECT f.cause FROM failure AS f WHERE f.run = r.seq)
    )
)
FROM json_each(:runs) AS e
CROSS JOIN run AS r ON r.seq = e.value
CROSS JOIN lane AS l ON l.id = r.lane
CROSS JOIN input AS i ON i.run = r.seq
LEFT JOIN outcome AS o ON o.run = r.seq;

-- name: one
-- The number of a run, as a list. Uses the unique index of run ids.
SELECT json_group_array(seq) FROM run WHERE id = :id;

-- name: ended
-- Of some runs, those that have ended. Uses the unique index of run ids.
SELECT json_group_array(json_object('id', r.id, 'state', r.state, 'body', o.body))
FROM json_each(:ids) AS e
CROSS JOIN run AS r ON r.id = e.value
LEFT JOIN outcome AS o ON o.run = r.seq
WHERE r.finished_at IS NOT NULL;

-- name: missing
-- Of some ids, those that no run has. Uses the unique index of run ids.
SELECT json_group_array(e.value)
FROM json_each(:ids) AS e
WHERE NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = e.value);

-- name: history
-- A page of a run's checkpoints. Walks the primary key of checkpoint.
SELECT json_group_array(
    json_object(
        'key', key, 'kind', kind, 'outcome', outcome, 'body', body, 'attempts', attempts, 'digest', digest,
        'at', at, 'started_at', started_at, 'saved_at', saved_at, 'position', position
    )
)
FROM (
    SELECT c.* FROM checkpoint AS c
    WHERE c.run = (SELECT seq FROM run WHERE id = :id) AND c.position > :after
    ORDER BY c.position LIMIT :limit
);

-- name: find
-- One checkpoint, as a list. Uses checkpoint_key.
SELECT json_group_array(
    json_object(
        'key', key, 'kind', kind, 'outcome', outcome, 'body', body, 'attempts', attempts, 'digest', digest,
        'at', at, 'started_at', started_at, 'saved_at', saved_at, 'position', position
    )
)
FROM checkpoint WHERE run = (SELECT seq FROM run WHERE id = :id) AND key = :key;

-- name: signals
-- A page of the signals that wait at a run. Walks signal_waiting.
SELECT json_group_array(json_object('position', position, 'name', name, 'body', body))
FROM (
    SELECT s.* FROM signal AS s INDEXED BY signal_waiting
    WHERE s.run = (SELECT seq FROM run WHERE id = :id) AND s.body IS NOT NULL AND s.position > :after
    ORDER BY s.position LIMIT :limit
);

-- name: ahead
-- How many ready runs of its queue that workers serve come before a queued run. Walks worker_lane, and run_ready for
-- each lane of the queue, up to :limit.
SELECT count(*)
FROM (
    SELECT 1
    FROM run AS r
    CROSS JOIN lane AS own ON own.id = r.lane
    CROSS JOIN lane AS l ON l.queue = own.queue AND l.id IN (SELECT s.lane FROM worker_lane AS s)
    CROSS JOIN run AS q INDEXED BY run_ready
        ON q.lane = l.id AND q.owner IN (0, r.owner) AND q.state = 'queued' AND q.held IS NULL
        AND (q.priority, q.place, q.seq) < (r.priority, r.place, r.seq)
    WHERE r.id = :id AND r.state = 'queued'
    LIMIT :limit
);

-- name: counts
-- How many runs of each workflow are in each state, by queue. Walks the lanes, and of runs those that are scheduled
-- or waiting, by run_away.
WITH away AS MATERIALIZED (
    SELECT lane, state, count(*) AS runs FROM run INDEXED BY run_away
    WHERE state IN ('scheduled', 'waiting') GROUP BY lane, state
    UNION ALL
    SELECT id, 'running', running FROM lane
),
counted AS (
    SELECT lane, state, runs FROM away
    UNION ALL
    SELECT id, 'succeeded', succeeded FROM lane
    UNION ALL
    SELECT id, 'failed', failed FROM lane
    UNION ALL
    SELECT id, 'cancelled', cancelled FROM lane
    UNION ALL
    SELECT
        l.id,
        'queued',
        l.runs - l.succeeded - l.failed - l.cancelled
        - coalesce((SELECT sum(a.runs) FROM away AS a WHERE a.lane = l.id), 0)
    FROM lane AS l
)
SELECT json_group_array(json_object('queue', queue, 'workflow', workflow, 'state', state, 'runs', runs))
FROM (
    SELECT l.queue, l.workflow, c.state, sum(c.runs) AS runs
    FROM counted AS c JOIN lane AS l ON l.id = c.lane
    WHERE c.runs > 0
    GROUP BY l.queue, l.workflow, c.state
);

-- name: workers
-- The live incarnations. Walks the workers, which are few, and run_owned for each.
SELECT json_group_array(
    json_object(
        'id', w.id,
        'name', w.name,
        'host', w.host,
        'pid', w.pid,
        'queues', json(w.queues),
        'workflows', json(w.workflows),
        'versions', (
            SELECT json_group_object(v.workflow, json(v.versions))
            FROM (
                SELECT
                    json_extract(value, '$[0]') AS workflow,
                    json_group_array(json_extract(value, '$[1]')) AS versions
                FROM json_each(w.versions) GROUP BY 1
            ) AS v
        ),
        'sessions', w.sessions,
        'owned_sessions', (SELECT count(*) FROM session AS s INDEXED BY session_owned WHERE s.owner = w.id),
        'concurrency', w.concurrency,
        'started_at', w.started_at,
        'lease_until', w.lease_until,
        'running', (
            SELECT count(*) FROM run AS r INDEXED BY run_owned WHERE r.worker = w.id AND r.state = 'running'
        )
    )
)
FROM worker AS w WHERE w.lease_until > :now;

-- name: dead
-- How many incarnations have a lease that ended. Walks the workers, which are few.
SELECT count(*) FROM worker WHERE lease_until <= :now;
