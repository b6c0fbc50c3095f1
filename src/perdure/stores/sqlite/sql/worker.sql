-- Incarnations of workers: their leases, and what becomes of their runs. All but the lookups need the write lock.

-- name: register
-- Begins an incarnation.
INSERT INTO worker (
    name, host, pid, queues, workflows, versions, sessions, session_idle, concurrency, started_at, lease_until
)
VALUES (
    :name, :host, :pid, :queues, :workflows, :versions, :sessions, :session_idle, :concurrency, :now, :now + :lease
);

-- name: serve
-- Ties an incarnation (all, when :worker is NULL) to the lanes that it serves, that exist and are not paused. Walks the
-- workers, which are few, and the unique index of lane.
INSERT OR IGNORE INTO worker_lane (worker, owner, lane)
SELECT w.id, o.value, l.id
FROM worker AS w
CROSS JOIN json_each(w.queues) AS q
CROSS JOIN json_each(w.workflows) AS f
CROSS JOIN lane AS l ON l.queue = q.value AND l.workflow = f.value
CROSS JOIN json_each(CASE WHEN w.sessions > 0 THEN json_array(0, w.id, -1) ELSE '[0]' END) AS o
WHERE (:worker IS NULL OR w.id = :worker)
    AND NOT l.paused
    AND (
        l.version = ''
        OR EXISTS (
            SELECT 1 FROM json_each(w.versions) AS v
            WHERE json_extract(v.value, '$[0]') = l.workflow AND json_extract(v.value, '$[1]') = l.version
        )
    );

-- name: renew
-- Extends a lease from now on, by the clock of the test or, as a rule, that of SQLite. Uses the primary key.
UPDATE worker SET
    lease_until = coalesce(:now, CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) + :lease
WHERE id = :worker;

-- name: lengthen
-- Extends the leases that had not ended so many milliseconds ago, by these. Walks the workers, which are few.
UPDATE worker SET lease_until = lease_until + :took
WHERE lease_until > CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) - :took;

-- name: named
-- Incarnations by their name. Uses worker_name.
SELECT json_group_array(id) FROM worker WHERE name = :name;

-- name: dead
-- Incarnations whose lease has ended. Walks the workers, which are few.
SELECT json_group_array(id) FROM worker WHERE lease_until <= :now;

-- name: first_end
-- When the first lease ends. Walks the workers, which are few.
SELECT min(lease_until) FROM worker;

-- name: owned
-- The runs of incarnations. Uses run_owned.
SELECT json_group_array(
    json_array(
        r.worker, r.seq, r.token, r.crashes, r.max_crashes,
        json(CASE WHEN r.cancelling IS NULL THEN 'false' ELSE 'true' END)
    )
)
FROM json_each(:workers) AS e CROSS JOIN run AS r INDEXED BY run_owned
WHERE r.worker = e.value AND r.state = 'running';

-- name: take_back
-- Takes runs from dead owners: queued, backing off, or ended. Uses the primary key; ending fires run_ended.
UPDATE run SET
    state = e.state,
    crashes = e.crashes,
    attempt = attempt + (e.state <> 'failed'),
    wake_at = e.wake_at,
    cut_off = 1,
    worker = NULL,
    token = NULL,
    cancelling = CASE WHEN e.state = 'failed' THEN NULL ELSE cancelling END,
    finished_at = CASE WHEN e.state = 'failed' THEN :now END,
    finish = CASE WHEN e.state = 'failed' THEN :finish + e.place END
FROM (
    SELECT
        key AS place,
        json_extract(value, '$[0]') AS seq,
        json_extract(value, '$[1]') AS state,
        json_extract(value, '$[2]') AS crashes,
        json_extract(value, '$[3]') AS wake_at
    FROM json_each(:runs)
) AS e
WHERE run.seq = e.seq;

-- name: stopping
-- The runs of an incarnation that are being cancelled. Uses run_cancelling.
SELECT json_group_array(seq) FROM run INDEXED BY run_cancelling
WHERE worker = :worker AND state = 'running' AND cancelling IS NOT NULL;

-- name: hand_back
-- Releases all that an incarnation owns, without counting. Uses run_owned.
UPDATE run SET state = 'queued', worker = NULL, token = NULL
WHERE seq IN (SELECT seq FROM run INDEXED BY run_owned WHERE worker = :worker AND state = 'running');

-- name: forget
-- Removes incarnations. Uses the primary key.
DELETE FROM worker WHERE id IN (SELECT value FROM json_each(:workers));

-- name: forget_lanes
-- Unties incarnations from their lanes. Uses the primary key.
DELETE FROM worker_lane WHERE worker IN (SELECT value FROM json_each(:workers));

-- name: leave_sessions
-- Ends what incarnations own of sessions; their runs are for others then. Uses session_owned.
UPDATE session SET owner = NULL WHERE owner IN (SELECT value FROM json_each(:workers));
