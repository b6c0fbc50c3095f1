-- Signals, cancelling and retrying: what clients do to runs that exist. All but the lookups need the write lock.

-- name: run
-- A run by its id. Uses the unique index of run ids.
SELECT seq, state FROM run WHERE id = :id;

-- name: delivered
-- Whether a signal was kept before. Uses signal_id.
SELECT 1 FROM signal WHERE run = :run AND id = :id;

-- name: deliver
-- Keeps a signal behind those that are there. Uses the primary key of signal.
INSERT INTO signal (run, position, id, name, body)
SELECT :run, coalesce(max(position), 0) + 1, :id, :name, :body FROM signal WHERE run = :run;

-- name: wake
-- Queues a run that is parked for a signal. Uses primary keys.
UPDATE run SET state = 'queued', wake_at = NULL
WHERE seq = :run
    AND state = 'waiting'
    AND EXISTS (SELECT 1 FROM wait AS w WHERE w.run = :run AND w.what = 'signal' AND w.target = :name);

-- name: tree
-- Runs and all that descends from them, those that have not ended, and whether each is running. Uses run_child.
WITH RECURSIVE tree (seq, id) AS (
    SELECT r.seq, r.id FROM json_each(:roots) AS e CROSS JOIN run AS r ON r.seq = e.value
    UNION
    SELECT c.seq, c.id FROM tree AS t CROSS JOIN run AS c INDEXED BY run_child ON c.parent = t.id
    WHERE :children
)
SELECT json_group_array(json_array(r.seq, r.state = 'running'))
FROM tree AS t CROSS JOIN run AS r ON r.seq = t.seq
WHERE r.finished_at IS NULL;

-- name: end
-- Ends runs that nobody owns. Uses the primary key; fires run_ended.
UPDATE run SET
    state = :state, held = NULL, wake_at = NULL, cancelling = NULL, cut_off = 0, finished_at = :now,
    finish = :finish + e.key
FROM json_each(:runs) AS e
WHERE run.seq = e.value;

-- name: same_outcome
-- Keeps one body for many runs. Uses the primary key.
INSERT OR REPLACE INTO outcome (run, body) SELECT value, :body FROM json_each(:runs);

-- name: ask
-- Asks for the end of runs that are owned; the first reason stays. Uses the primary key.
UPDATE run SET cancelling = :reason, overdue = :overdue
WHERE seq IN (SELECT value FROM json_each(:runs)) AND cancelling IS NULL;

-- name: held
-- Of runs that came back while they are being cancelled, those that nobody may claim (see perdure.blame), with why. Uses
-- primary keys; walks the workers, which are few, for a run that is pinned to a version.
SELECT json_group_array(json_array(r.seq, r.cancelling, json(CASE WHEN r.overdue THEN 'true' ELSE 'false' END)))
FROM json_each(:runs) AS e
CROSS JOIN run AS r ON r.seq = e.value
CROSS JOIN lane AS l ON l.id = r.lane
WHERE r.state = 'queued'
    AND r.cancelling IS NOT NULL
    AND (
        l.paused
        OR r.held IN ('group', 'paused')
        OR (
            l.version <> ''
            AND NOT EXISTS (SELECT 1 FROM worker_lane AS s WHERE s.lane = l.id AND s.worker IS NOT :leaving)
            AND EXISTS (
                SELECT 1
                FROM worker AS w CROSS JOIN json_each(w.queues) AS q CROSS JOIN json_each(w.workflows) AS f
                WHERE w.id IS NOT :leaving AND q.value = l.queue AND f.value = l.workflow
            )
        )
    );

-- name: position
-- Where a checkpoint stands. Uses checkpoint_key.
SELECT position FROM checkpoint WHERE run = :run AND key = :key;

-- name: rewind
-- Clears all checkpoints from a position on. Uses the primary key.
DELETE FROM checkpoint WHERE run = :run AND position >= :position;

-- name: rewind_within
-- Clears the checkpoints of what a step called, which came before its own. Uses checkpoint_key: '0' is next to '/'.
DELETE FROM checkpoint WHERE run = :run AND key >= :key || '/' AND key < :key || '0';

-- name: again
-- Queues runs that ended once more. Uses the primary key.
UPDATE run SET
    state = 'queued', attempt = attempt + 1, crashes = 0, cut_off = 0, deadline = NULL, due = NULL,
    timeout = NULL, cancelling = NULL, finished_at = NULL, finish = NULL
WHERE seq IN (SELECT value FROM json_each(:runs));

-- name: drop_outcomes
-- Forgets the outcomes of runs. Uses the primary key.
DELETE FROM outcome WHERE run IN (SELECT value FROM json_each(:runs));

-- name: drop_failures
-- Forgets why runs failed. Uses the primary key.
DELETE FROM failure WHERE run IN (SELECT value FROM json_each(:runs));

-- name: drop_errors
-- Clears the checkpoints that failed. Uses the primary key.
DELETE FROM checkpoint WHERE run IN (SELECT value FROM json_each(:runs)) AND outcome = 'error';

-- name: ids
-- The ids of runs, in the order of their numbers. Uses the primary key.
SELECT json_group_array(r.id) FROM json_each(:runs) AS e CROSS JOIN run AS r ON r.seq = e.value;
