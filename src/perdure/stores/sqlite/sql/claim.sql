-- The statements that claim runs: what is ready, and what limits, rates and sessions leave of it. `take`, `spend` and
-- `put_off` write: they need the write lock.

-- name: turns
-- The first ready runs of the worker's lanes, for a claim that has neither budgets nor sessions to look at: by turns of
-- their queues, which go on behind :after. Walks at most :slots entries of run_ready for each lane; all it touches is
-- claimed, or comes right after what is.
SELECT json_group_array(seq)
FROM (
    SELECT seq
    FROM (
        SELECT r.seq, l.queue, row_number() OVER (PARTITION BY l.queue ORDER BY r.priority, r.place, r.seq) AS turn
        FROM worker_lane AS s CROSS JOIN lane AS l ON l.id = s.lane CROSS JOIN run AS r
        WHERE s.worker = :worker
            AND r.seq IN (
                SELECT q.seq FROM run AS q INDEXED BY run_ready
                WHERE q.lane = s.lane AND q.owner = s.owner AND q.state = 'queued' AND q.held IS NULL
                ORDER BY q.priority, q.place, q.seq
                LIMIT :slots
            )
    )
    ORDER BY turn, queue <= :after, queue
    LIMIT :slots
);

-- name: heads
-- The first ready runs of the worker's lanes, for a claim that has to look at budgets or sessions: where there are
-- many in a lane no more than :slots, whose runs it may not own no run at all (:least). Uses run_ready.
SELECT json_group_array(json_array(seq, priority, place, queue, workflow, grp, session))
FROM (
    SELECT
        r.seq, r.priority, r.place, l.queue, l.workflow, coalesce(g.key, '') AS grp,
        CASE WHEN r.owner = -1 THEN r.session END AS session
    FROM worker_lane AS s
    CROSS JOIN lane AS l ON l.id = s.lane
    CROSS JOIN run AS r
    LEFT JOIN grp AS g ON g.id = r.grp
    WHERE s.worker = :worker
        AND s.owner >= :least
        AND r.seq IN (
            SELECT q.seq FROM run AS q INDEXED BY run_ready
            WHERE q.lane = s.lane AND q.owner = s.owner AND q.state = 'queued' AND q.held IS NULL
            ORDER BY q.priority, q.place, q.seq
            LIMIT :slots
        )
);

-- name: rooms
-- How many more sessions the worker may own, until when it keeps the first one of those of which no run is there, and
-- whether a run is ready in its lanes whose session nobody owns. Uses session_owned and run_ready.
SELECT
    w.sessions - (SELECT count(*) FROM session AS s INDEXED BY session_owned WHERE s.owner = w.id),
    (
        SELECT s.idle_until FROM session AS s INDEXED BY session_owned
        WHERE s.owner = w.id AND s.idle_until > 0 ORDER BY s.idle_until LIMIT 1
    ),
    EXISTS (
        SELECT 1
        FROM worker_lane AS s CROSS JOIN run AS q INDEXED BY run_ready
        WHERE s.worker = w.id AND s.owner = -1
            AND q.lane = s.lane AND q.owner = s.owner AND q.state = 'queued' AND q.held IS NULL
    )
FROM worker AS w WHERE w.id = :worker;

-- name: budgets
-- The limits and rates that claims have to keep to: all but those of groups, and those of the groups that are named.
-- Uses scope_budget.
SELECT json_group_array(
    json_array(kind, name, running, rate_count, rate_period, rate_burst, debt, debt_at)
)
FROM scope INDEXED BY scope_budget
WHERE budget = 1
    AND (
        kind = 'namespace'
        OR kind = 'queue'
        OR kind = 'workflow'
        OR (kind = 'group' AND name IN (SELECT value FROM json_each(:groups)))
    );

-- name: running
-- How many runs of each queue and workflow are running. Walks the lanes, which are few.
SELECT json_group_array(json_array(queue, workflow, running)) FROM lane WHERE running > 0;

-- name: take
-- Gives runs to the worker, in the order of the list, as long as they fit into the bytes, and so many (:least) in any
-- case. Uses the primary key.
UPDATE run SET
    state = 'running',
    worker = :worker,
    token = :token + ranked.key,
    started_at = coalesce(started_at, :now)
FROM (
    SELECT seq, key, sum(size) OVER (ORDER BY key ROWS UNBOUNDED PRECEDING) AS bytes
    FROM (
        SELECT
            e.key,
            i.run AS seq,
            i.size + coalesce(
                (
                    SELECT sum(size)
                    FROM (SELECT size FROM checkpoint AS c WHERE c.run = i.run ORDER BY c.position LIMIT :page)
                ),
                0
            ) AS size
        FROM json_each(:runs) AS e CROSS JOIN input AS i ON i.run = e.value
    )
) AS ranked
WHERE run.seq = ranked.seq AND (ranked.key < :least OR ranked.bytes <= :bytes);

-- name: size
-- How many bytes the inputs and first checkpoints of runs have. Uses primary keys.
SELECT coalesce(
    sum(
        i.size + coalesce(
            (
                SELECT sum(size)
                FROM (SELECT size FROM checkpoint AS c WHERE c.run = i.run ORDER BY c.position LIMIT :page)
            ),
            0
        )
    ),
    0
)
FROM json_each(:runs) AS e CROSS JOIN input AS i ON i.run = e.value;

-- name: spend
-- Notes what began by the rates of scopes. Uses the primary key.
UPDATE scope SET debt = json_extract(e.value, '$[2]'), debt_at = json_extract(e.value, '$[3]')
FROM json_each(:rates) AS e
WHERE scope.kind = json_extract(e.value, '$[0]') AND scope.name = json_extract(e.value, '$[1]');

-- name: ahead
-- For runs, how many of their groups come before them that were put off, up to :most. Walks run_put_off.
SELECT json_group_object(
    r.seq,
    (
        SELECT count(*)
        FROM (
            SELECT 1 FROM run AS p INDEXED BY run_put_off
            WHERE p.grp = r.grp AND p.held = 'rate' AND p.priority < r.priority
            UNION ALL
            SELECT 1 FROM run AS p INDEXED BY run_put_off
            WHERE p.grp = r.grp AND p.held = 'rate' AND p.priority = r.priority AND p.place < r.place
            LIMIT :most
        )
    )
)
FROM json_each(:runs) AS e CROSS JOIN run AS r ON r.seq = e.value;

-- name: put_off
-- Keeps runs until the time at which the rates of their groups let them begin. Uses the primary key.
UPDATE run SET state = 'scheduled', held = 'rate', wake_at = json_extract(e.value, '$[1]')
FROM json_each(:runs) AS e
WHERE run.seq = json_extract(e.value, '$[0]');

-- name: claimed
-- How many runs the worker owns of a range of tokens, and the last of these tokens. Uses run_owned.
SELECT count(*), max(token)
FROM run INDEXED BY run_owned
WHERE worker = :worker AND state = 'running' AND token BETWEEN :first AND :last;
