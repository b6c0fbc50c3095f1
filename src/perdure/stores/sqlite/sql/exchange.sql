-- The statements of an exchange. A batch goes in as one JSON array and comes back as one row, so that the number of
-- steps does not depend on the number of runs. All but `head`, `seen` and `reply` write: they need the write lock.

-- name: head
-- The store's time (or the one that is given), and what the rest of the exchange depends on: of the claims that are
-- named, those with something to be minded (flags: 1 lost, 2 settled before, 4 being cancelled, 8 has crashed, or was cut
-- off by a crash, 16 has a parent, 32 has a session), and whether any has a group; the next times, and when the first session has been idle for
-- long enough; how many sessions the worker may own (NULL when it is not known), and whether a run is ready for it
-- whose session nobody owns; whether claims have to look at budgets; whether anything is ready for it; and whether it
-- has to be told of a cancellation or a schedule.
-- Reads by primary key; run_timer, run_deadline, schedule_next, session_idle, scope_budget, run_ready, run_cancelling
-- for one entry.
SELECT
    t.now,
    (
        SELECT json_array(json_group_array(json_array(token, flags)) FILTER (WHERE flags & 63), max(flags & 64))
        FROM (
            SELECT
                CAST(e.key AS INTEGER) AS token,
                CASE
                    WHEN r.state = 'running' AND r.token = CAST(e.key AS INTEGER) THEN
                        (r.cancelling IS NOT NULL) * 4 + (r.crashes > 0 OR r.cut_off) * 8 + (r.parent IS NOT NULL) * 16
                        + (r.session IS NOT NULL) * 32 + (r.grp IS NOT NULL) * 64
                    WHEN r.settled = CAST(e.key AS INTEGER) THEN 2
                    ELSE 1
                END AS flags
            FROM json_each(:refs) AS e LEFT JOIN run AS r ON r.seq = e.value
        )
    ),
    (SELECT wake_at FROM run WHERE wake_at IS NOT NULL ORDER BY wake_at LIMIT 1),
    (
        SELECT deadline FROM run
        WHERE deadline IS NOT NULL AND finished_at IS NULL AND cancelling IS NULL
        ORDER BY deadline LIMIT 1
    ),
    (
        SELECT next_slot FROM schedule INDEXED BY schedule_next
        WHERE next_slot > t.now AND paused = 0 ORDER BY next_slot LIMIT 1
    ),
    (SELECT idle_until FROM session WHERE idle_until IS NOT NULL ORDER BY idle_until LIMIT 1),
    (SELECT sessions FROM worker WHERE id = :worker),
    EXISTS (
        SELECT 1
        FROM worker_lane AS s CROSS JOIN run AS q INDEXED BY run_ready
        WHERE s.worker = :worker AND s.owner = -1
            AND q.lane = s.lane AND q.owner = s.owner AND q.state = 'queued' AND q.held IS NULL
    ),
    EXISTS (SELECT 1 FROM scope INDEXED BY scope_budget WHERE budget = 1),
    EXISTS (
        SELECT 1
        FROM worker_lane AS s CROSS JOIN run AS q INDEXED BY run_ready
        WHERE s.worker = :worker
            AND q.lane = s.lane AND q.owner = s.owner AND q.state = 'queued' AND q.held IS NULL
    ),
    EXISTS (
        SELECT 1 FROM run INDEXED BY run_cancelling
        WHERE worker = :worker AND state = 'running' AND cancelling IS NOT NULL
    ) OR EXISTS (
        SELECT 1 FROM schedule INDEXED BY schedule_next
        WHERE next_slot <= t.now AND paused = 0 AND name NOT IN (SELECT value FROM json_each(:skips))
    )
FROM (
    SELECT coalesce(:now, CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) AS now
) AS t;

-- name: save
-- Keeps checkpoints at new positions, in the order of the batch. Uses the primary key and checkpoint_key.
INSERT INTO checkpoint (run, position, key, kind, outcome, attempts, digest, at, started_at, saved_at, size, body)
SELECT
    json_extract(e.value, '$[0]'),
    coalesce((SELECT max(c.position) FROM checkpoint AS c WHERE c.run = json_extract(e.value, '$[0]')), 0) + 1 + e.key,
    json_extract(e.value, '$[1]'),
    json_extract(e.value, '$[2]'),
    json_extract(e.value, '$[3]'),
    json_extract(e.value, '$[4]'),
    json_extract(e.value, '$[5]'),
    json_extract(e.value, '$[6]'),
    json_extract(e.value, '$[7]'),
    :now,
    json_extract(e.value, '$[8]'),
    json_extract(e.value, '$[9]')
FROM json_each(:saves) AS e
WHERE true
ON CONFLICT (run, key) DO UPDATE SET
    position = excluded.position,
    kind = excluded.kind,
    outcome = excluded.outcome,
    attempts = excluded.attempts,
    digest = excluded.digest,
    at = excluded.at,
    started_at = excluded.started_at,
    saved_at = excluded.saved_at,
    size = excluded.size,
    body = excluded.body;

-- name: save_one
-- Like `save`, for one checkpoint, whose parts are the parameters: a worker with one run under way saves nothing else.
INSERT INTO checkpoint (run, position, key, kind, outcome, attempts, digest, at, started_at, saved_at, size, body)
VALUES (
    ?1, coalesce((SELECT max(c.position) FROM checkpoint AS c WHERE c.run = ?1), 0) + 1,
    ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?11, ?9, ?10
)
ON CONFLICT (run, key) DO UPDATE SET
    position = excluded.position,
    kind = excluded.kind,
    outcome = excluded.outcome,
    attempts = excluded.attempts,
    digest = excluded.digest,
    at = excluded.at,
    started_at = excluded.started_at,
    saved_at = excluded.saved_at,
    size = excluded.size,
    body = excluded.body;

-- name: consume
-- Takes signals off their runs, for checkpoints. Uses the primary key.
UPDATE signal SET taken = body, taken_by = json_extract(e.value, '$[2]'), body = NULL
FROM json_each(:consumed) AS e
WHERE signal.run = json_extract(e.value, '$[0]')
    AND signal.position = json_extract(e.value, '$[1]')
    AND signal.body IS NOT NULL;

-- name: give_back
-- Lets the signals wait again whose checkpoints were cleared. Uses the primary key, and checkpoint_key.
UPDATE signal SET body = taken, taken = NULL, taken_by = NULL
WHERE run IN (SELECT value FROM json_each(:runs))
    AND taken IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM checkpoint AS c WHERE c.run = signal.run AND c.key = signal.taken_by);

-- name: give_back_of
-- Lets the signals wait again that checkpoints had taken. Uses the primary key.
UPDATE signal SET body = taken, taken = NULL, taken_by = NULL
FROM json_each(:given_back) AS e
WHERE signal.run = json_extract(e.value, '$[0]')
    AND signal.taken_by = json_extract(e.value, '$[1]')
    AND signal.taken IS NOT NULL;

-- name: forget_signals
-- Forgets the signals that runs had consumed before they continued the last time. Uses the primary key.
DELETE FROM signal WHERE run IN (SELECT value FROM json_each(:runs)) AND body IS NULL AND taken IS NULL;

-- name: drop_signals
-- Drops what runs consumed, but for its ids. Uses the primary key.
UPDATE signal SET taken = NULL, taken_by = NULL
WHERE run IN (SELECT value FROM json_each(:runs)) AND taken IS NOT NULL;

-- name: progress
-- Forgets what a crash cut off of runs that kept something since, and the crashes of those that made progress. Uses the
-- primary key.
UPDATE run SET
    cut_off = 0,
    crashes = CASE WHEN seq IN (SELECT value FROM json_each(:progressed)) THEN 0 ELSE crashes END
WHERE seq IN (SELECT value FROM json_each(:runs));

-- name: settle
-- Ends claims: each goes to a state, with a timer or without. Uses the primary key; ending fires run_ended.
-- The attempt is counted up by `step` (retry), or begins anew when that is NULL (continue); with 0 a run that is queued is
-- handed back, and what a crash cut off of it before is still to be counted. `number` counts those that
-- end: those give up their slots here, which saves a trigger to write them once more. (Materialized, so that each part
-- is taken out of the JSON once, however often it is used.)
UPDATE run SET
    state = e.state,
    wake_at = e.wake_at,
    attempt = coalesce(attempt + e.step, 1),
    crashes = CASE WHEN e.step IS NULL THEN 0 ELSE crashes END,
    cut_off = CASE WHEN e.state = 'queued' AND e.step = 0 THEN cut_off ELSE 0 END,
    worker = NULL,
    settled = e.token,
    cancelling = CASE WHEN e.number IS NULL THEN cancelling END,
    slot = CASE WHEN e.number IS NULL OR slot IS NULL THEN slot ELSE 0 END,
    finished_at = CASE WHEN e.number IS NOT NULL THEN :now END,
    finish = :finish + e.number
FROM (
    WITH parts AS MATERIALIZED (
        SELECT
            json_extract(value, '$[0]') AS seq,
            json_extract(value, '$[1]') AS token,
            json_extract(value, '$[2]') AS state,
            json_extract(value, '$[3]') AS wake_at,
            json_extract(value, '$[4]') AS step,
            json_extract(value, '$[5]') AS number
        FROM json_each(:settles)
    )
    SELECT * FROM parts
) AS e
WHERE run.seq = e.seq;

-- name: finish
-- Gives out numbers in the order of finishing; returns the last one that was given out before.
UPDATE finish SET last = last + :number RETURNING last - :number;

-- name: woken
-- Whether the end of one of the runs made a run ready that was parked for it, or may have completed a batch or let the
-- next run of a schedule begin. Looks at the runs only if there are such waits, batches or schedules at all. Uses
-- wait_run and primary keys.
SELECT CASE
    WHEN EXISTS (SELECT 1 FROM wait INDEXED BY wait_run WHERE what = 'run')
        OR EXISTS (SELECT 1 FROM batch)
        OR EXISTS (SELECT 1 FROM schedule)
    THEN EXISTS (
        SELECT 1
        FROM json_each(:runs) AS e
        CROSS JOIN run AS r ON r.seq = e.value
        WHERE r.batch IS NOT NULL
            OR r.schedule IS NOT NULL
            OR EXISTS (
                SELECT 1
                FROM wait AS w INDEXED BY wait_run CROSS JOIN run AS p ON p.seq = w.run
                WHERE w.what = 'run' AND w.target = r.id AND p.state = 'queued'
            )
    )
END;

-- name: failures
-- Keeps why runs failed. Uses the primary key.
INSERT OR REPLACE INTO failure (run, cause)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:failures);

-- name: told
-- Keeps what runs say of their progress. Uses the primary key.
INSERT OR REPLACE INTO status (run, body)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:told);

-- name: outcomes
-- Keeps the bodies of runs. Uses the primary key.
INSERT OR REPLACE INTO outcome (run, body)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:bodies);

-- name: drop_outcomes
-- Forgets the bodies of runs that go on. Uses the primary key.
DELETE FROM outcome WHERE run IN (SELECT value FROM json_each(:runs));

-- name: drop_waits
-- Forgets what runs were parked for. Uses the primary key.
DELETE FROM wait WHERE run IN (SELECT value FROM json_each(:runs));

-- name: drop_errors
-- Clears the checkpoints of steps that failed. Uses the primary key.
DELETE FROM checkpoint WHERE run IN (SELECT value FROM json_each(:runs)) AND outcome = 'error';

-- name: drop_checkpoints
-- Clears all checkpoints of runs. Uses the primary key.
DELETE FROM checkpoint WHERE run IN (SELECT value FROM json_each(:runs));

-- name: inputs
-- Replaces the inputs of runs; the first one is kept. Uses the primary key.
INSERT INTO input (run, size, body)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
FROM json_each(:inputs)
WHERE true
ON CONFLICT (run) DO UPDATE SET size = excluded.size, first = coalesce(first, body), body = excluded.body;

-- name: park
-- Keeps what runs are parked for. Uses the primary key.
INSERT OR REPLACE INTO wait (run, key, what, target, at)
SELECT
    json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]')
FROM json_each(:waits);

-- name: unpark
-- Queues those of the runs just parked for which a wait is true already. Uses the primary key of wait, signal_named,
-- and the unique index of run ids.
UPDATE run SET state = 'queued', wake_at = NULL
WHERE seq IN (SELECT value FROM json_each(:runs))
    AND state = 'waiting'
    AND EXISTS (
        SELECT 1 FROM wait AS w
        WHERE w.run = run.seq
            AND (
                w.at <= :now
                OR (
                    w.what = 'signal'
                    AND EXISTS (
                        SELECT 1 FROM signal AS s
                        WHERE s.run = w.run AND s.name = w.target AND s.body IS NOT NULL
                    )
                )
                OR (
                    w.what = 'run'
                    AND NOT EXISTS (SELECT 1 FROM run AS t WHERE t.id = w.target AND t.finished_at IS NULL)
                )
            )
    );

-- name: promote
-- Queues runs whose timer is due, a bounded number. One that was put off may have been sent into its line by a run of
-- its group that came before it here: then it is queued, and held. Uses run_timer.
UPDATE run SET state = 'queued', wake_at = NULL, held = CASE WHEN state = 'queued' THEN held END
WHERE seq IN (SELECT seq FROM run WHERE wake_at <= :now ORDER BY wake_at LIMIT :limit);

-- name: overdue
-- Unfinished runs whose deadline has passed, a bounded number. Uses run_deadline.
SELECT json_group_array(seq)
FROM (
    SELECT seq FROM run
    WHERE deadline <= :now AND finished_at IS NULL AND cancelling IS NULL
    ORDER BY deadline LIMIT :limit
);

-- name: rest
-- Sets how long owners keep the sessions of which no run is there any more. Uses session_idle.
UPDATE session SET
    idle_until = :now + (SELECT w.session_idle FROM worker AS w WHERE w.id = session.owner)
WHERE idle_until = 0;

-- name: let_go
-- Ends the ownership of sessions that were idle long enough, a bounded number. Uses session_idle.
UPDATE session SET owner = NULL
WHERE id IN (SELECT id FROM session WHERE idle_until > 0 AND idle_until <= :now ORDER BY idle_until LIMIT :limit);

-- name: give_up
-- Ends what a worker owns of sessions of which it runs nothing. Uses session_owned and run_seat.
UPDATE session SET owner = NULL
WHERE owner = :worker
    AND NOT EXISTS (SELECT 1 FROM run AS r INDEXED BY run_seat WHERE r.session = session.id AND r.seat = 3);

-- name: seen
-- Of the watched waits, those that are true, in the order in which they are asked for, up to the first one that is over
-- the bytes of a page. Uses signal_named and the unique index of run ids.
SELECT json_group_array(
    json_object(
        'ref', seq,
        'token', token,
        'key', key,
        'signal', CASE
            WHEN position IS NOT NULL THEN json_object('position', position, 'name', target, 'body', body)
        END,
        'ended', CASE WHEN state IS NOT NULL THEN json_object('id', target, 'state', state, 'body', body) END,
        'missing', json(iif(missing, 'true', 'false'))
    )
)
FROM (
    SELECT
        *,
        row_number() OVER earlier AS number,
        sum(length(CAST(body AS BLOB))) OVER earlier AS before
    FROM (
        SELECT
            w.*, s.position, t.state, coalesce(s.body, o.body) AS body,
            w.what = 'run' AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = w.target) AS missing
        FROM (
            SELECT
                key AS place,
                json_extract(value, '$[0]') AS seq,
                json_extract(value, '$[1]') AS token,
                json_extract(value, '$[2]') AS key,
                json_extract(value, '$[3]') AS what,
                json_extract(value, '$[4]') AS target,
                json_extract(value, '$[5]') AS at
            FROM json_each(:watches)
        ) AS w
        LEFT JOIN signal AS s ON w.what = 'signal' AND s.run = w.seq AND s.position = (
            SELECT x.position FROM signal AS x
            WHERE x.run = w.seq AND x.name = w.target AND x.body IS NOT NULL
            ORDER BY x.position LIMIT 1
        )
        LEFT JOIN run AS t ON w.what = 'run' AND t.id = w.target AND t.finished_at IS NOT NULL
        LEFT JOIN outcome AS o ON o.run = t.seq
    )
    WHERE position IS NOT NULL OR state IS NOT NULL OR missing OR at <= :now
    WINDOW earlier AS (ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
WHERE number <= 2 OR before <= :page_bytes;

-- name: ends
-- The runs that a claimed one was parked for and that have ended. Uses primary keys and the unique index of run ids.
SELECT json_group_array(w.target)
FROM wait AS w CROSS JOIN run AS t ON t.id = w.target AND t.finished_at IS NOT NULL
WHERE w.run = :run AND w.what = 'run';

-- name: reply
-- All that the worker needs next, in one row: the claims of a range of tokens with checkpoints, signals and ends, one more
-- of each than a page where there are more; what ties some of them to others; owned runs to be cancelled; the next times;
-- schedules that are due; whether more is ready for it, and whether anything is ready for anybody. What no run has (it
-- waits for nothing, no signal is there) is not looked for with each claim.
-- Uses run_owned, run_cancelling, run_timer, run_deadline, schedule_next, run_ready, and primary keys.
SELECT
    (
        SELECT json_group_array(
            json_object(
                'ref', r.seq,
                'token', r.token,
                'id', r.id,
                'workflow', l.workflow,
                'queue', l.queue,
                'input', i.body,
                'attempt', r.attempt,
                'crashes', r.crashes,
                'cut_off', CASE WHEN r.cut_off THEN json('true') ELSE json('false') END,
                'created_at', r.created_at,
                'deadline', r.deadline,
                'parent', r.parent,
                'cancelling', CASE
                    WHEN r.cancelling IS NOT NULL THEN json_object(
                        'reason', r.cancelling, 'deadline', json(CASE WHEN r.overdue THEN 'true' ELSE 'false' END)
                    )
                END,
                'checkpoints', (
                    SELECT json_group_array(
                        json_object(
                            'key', key, 'kind', kind, 'outcome', outcome, 'body', body, 'attempts', attempts,
                            'digest', digest, 'at', at, 'started_at', started_at, 'saved_at', saved_at,
                            'position', position
                        )
                    )
                    FROM (
                        SELECT
                            *,
                            row_number() OVER earlier AS number,
                            sum(size) OVER earlier AS before
                        FROM (SELECT * FROM checkpoint AS c WHERE c.run = r.seq ORDER BY c.position LIMIT :page + 1)
                        WINDOW earlier AS (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                    )
                    WHERE number <= 2 OR before <= :page_bytes
                ),
                'signals', CASE
                    WHEN (SELECT EXISTS (SELECT 1 FROM signal))
                    THEN (
                        SELECT json_group_array(json_object('position', position, 'name', name, 'body', body))
                        FROM (
                            SELECT
                                *,
                                row_number() OVER earlier AS number,
                                sum(length(CAST(body AS BLOB))) OVER earlier AS before
                            FROM (
                                SELECT * FROM signal AS s INDEXED BY signal_waiting
                                WHERE s.run = r.seq AND s.body IS NOT NULL ORDER BY s.position LIMIT :page + 1
                            )
                            WINDOW earlier AS (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                        )
                        WHERE number <= 2 OR before <= :page_bytes
                    )
                    ELSE json('[]')
                END,
                'ended', CASE
                    WHEN (SELECT EXISTS (SELECT 1 FROM wait))
                    THEN (
                        SELECT json_group_array(json_object('id', id, 'state', state, 'body', body))
                        FROM (
                            SELECT
                                *,
                                row_number() OVER earlier AS number,
                                sum(length(CAST(body AS BLOB))) OVER earlier AS before
                            FROM (
                                SELECT w.key, t.id, t.state, o.body
                                FROM wait AS w
                                CROSS JOIN run AS t ON t.id = w.target AND t.finished_at IS NOT NULL
                                LEFT JOIN outcome AS o ON o.run = t.seq
                                WHERE w.run = r.seq AND w.what = 'run'
                                ORDER BY w.key LIMIT :page + 1
                            )
                            WINDOW earlier AS (ORDER BY key ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                        )
                        WHERE number <= 2 OR before <= :page_bytes
                    )
                    ELSE json('[]')
                END,
                'missing', CASE
                    WHEN (SELECT EXISTS (SELECT 1 FROM wait))
                    THEN (
                        SELECT json_group_array(w.key)
                        FROM wait AS w
                        WHERE w.run = r.seq AND w.what = 'run'
                            AND NOT EXISTS (SELECT 1 FROM run AS t WHERE t.id = w.target)
                    )
                    ELSE json('[]')
                END,
                'labels', CASE
                    WHEN (SELECT EXISTS (SELECT 1 FROM label))
                    THEN (SELECT json_group_object(b.key, b.value) FROM label AS b WHERE b.run = r.seq)
                    ELSE json('{}')
                END,
                'more_checkpoints', json('false'),
                'more_signals', json('false')
            )
        )
        FROM run AS r INDEXED BY run_owned
        CROSS JOIN lane AS l ON l.id = r.lane
        CROSS JOIN input AS i ON i.run = r.seq
        WHERE r.worker = :worker AND r.state = 'running' AND r.token BETWEEN :first AND :last
    ),
    (
        SELECT json_group_array(json_array(r.token, coalesce(g.key, ''), coalesce(s.key, ''), l.version))
        FROM run AS r INDEXED BY run_owned
        CROSS JOIN lane AS l ON l.id = r.lane
        LEFT JOIN grp AS g ON g.id = r.grp
        LEFT JOIN session AS s ON s.id = r.session
        WHERE r.worker = :worker AND r.state = 'running' AND r.token BETWEEN :first AND :last
            AND (r.grp IS NOT NULL OR r.session IS NOT NULL OR l.version <> '')
    ),
    (
        SELECT json_group_array(
            json_array(
                token,
                json_object('reason', cancelling, 'deadline', json(CASE WHEN overdue THEN 'true' ELSE 'false' END))
            )
        )
        FROM run INDEXED BY run_cancelling
        WHERE worker = :worker AND state = 'running' AND cancelling IS NOT NULL
    ),
    (SELECT wake_at FROM run WHERE wake_at IS NOT NULL ORDER BY wake_at LIMIT 1),
    (
        SELECT deadline FROM run
        WHERE deadline IS NOT NULL AND finished_at IS NULL AND cancelling IS NULL
        ORDER BY deadline LIMIT 1
    ),
    (
        SELECT next_slot FROM schedule INDEXED BY schedule_next
        WHERE next_slot > :now AND paused = 0 ORDER BY next_slot LIMIT 1
    ),
    (
        SELECT json_group_array(
            json_object(
                'name', name, 'spec', json(spec), 'paused', json('false'), 'next_slot', next_slot,
                'last_slot', last_slot, 'last_run', last_run, 'declared', json(iif(declared, 'true', 'false'))
            )
        )
        FROM (
            SELECT * FROM schedule INDEXED BY schedule_next
            WHERE next_slot <= :now AND paused = 0 AND name NOT IN (SELECT value FROM json_each(:skips))
            ORDER BY next_slot LIMIT :due
        )
    ),
    EXISTS (
        SELECT 1
        FROM worker_lane AS s CROSS JOIN run AS q INDEXED BY run_ready
        WHERE s.worker = :worker
            AND q.lane = s.lane AND q.owner = s.owner AND q.state = 'queued' AND q.held IS NULL
    ),
    EXISTS (SELECT 1 FROM run INDEXED BY run_ready WHERE state = 'queued' AND held IS NULL);
