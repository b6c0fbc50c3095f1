-- What clients read. No statement here locks a row.

-- name: records
-- Runs by their numbers, as JSON. What lacks a worker to see to its group is not held by that. Uses primary keys.
SELECT json_agg(json_build_object(
    'id', r.id,
    'workflow', a.workflow,
    'queue', a.queue,
    'priority', r.priority,
    'state', coalesce(l.state, d.state),
    'attempt', coalesce(l.attempt, d.attempt),
    'crashes', coalesce(l.crashes, d.crashes),
    'cut_off', coalesce(l.cut_off, false),
    'input', r.input,
    'created_at', r.created_at,
    'started_at', coalesce(l.started_at, d.started_at),
    'finished_at', d.finished_at,
    'wake_at', l.wake_at,
    'deadline', coalesce(l.deadline, d.deadline),
    'parent', r.parent,
    'worker', (SELECT w.name FROM perdure.worker AS w WHERE w.id = l.worker),
    'lease_until', (SELECT e.until FROM perdure.lease AS e WHERE e.worker = l.worker),
    'cancelling', l.cancelling,
    'held', CASE WHEN l.held = 'group' AND l.grp IS NULL THEN NULL ELSE l.held END,
    'body', CASE WHEN d.seq IS NOT NULL THEN d.body WHEN l.state NOT IN ('running', 'waiting') THEN l.error END,
    'waits', (
        SELECT coalesce(
            json_agg(json_build_object(
                'key', w.key,
                'what', w.what,
                'target', CASE
                    WHEN w.what = 'schedule' THEN (
                        SELECT f.id FROM perdure.live AS x JOIN perdure.run AS f ON f.seq = x.seq
                        WHERE x.schedule = w.target ORDER BY x.seq LIMIT 1
                    )
                    ELSE w.target
                END,
                'at', w.at
            ) ORDER BY w.key),
            '[]'
        )
        FROM perdure.wait AS w WHERE w.run = r.seq AND l.state = 'waiting'
    ),
    'position', r.seq,
    'version', a.version,
    'group', coalesce((SELECT g.key FROM perdure.grp AS g WHERE g.id = r.grp), ''),
    'session', coalesce((SELECT s.key FROM perdure.session AS s WHERE s.id = r.session), ''),
    'unique', coalesce(r.unique_key, ''),
    'batch', coalesce(r.batch, ''),
    'labels', coalesce(
        (SELECT json_object_agg(b.key, b.value) FROM perdure.label AS b WHERE b.run = r.seq), '{}'
    ),
    'status', (SELECT s.body FROM perdure.status AS s WHERE s.run = r.seq),
    'cause', d.cause
))::text
FROM unnest($1::bigint[]) AS e (seq)
JOIN perdure.run AS r ON r.seq = e.seq
JOIN perdure.lane AS a ON a.id = r.lane
LEFT JOIN perdure.live AS l ON l.seq = r.seq
LEFT JOIN perdure.ended AS d ON d.seq = r.seq
WHERE l.seq IS NOT NULL OR d.seq IS NOT NULL;

-- name: one
-- The number of a run. Uses the unique index of run ids.
SELECT seq FROM perdure.run WHERE id = $1;

-- name: ended
-- Of some runs, those that have ended, as JSON, at most 512 KiB of them, or one; and at how many of the runs it has looked.
-- Uses the unique index of run ids.
SELECT
    (json_agg(json_build_object('id', f.id, 'state', f.state, 'body', f.body)) FILTER (WHERE f.fits))::text,
    coalesce(min(f.place) FILTER (WHERE NOT f.fits) - 1, cardinality($1))
FROM (
    SELECT
        e.id, d.state, d.body, e.place,
        row_number() OVER page = 1 OR coalesce(sum(octet_length(d.body)) OVER page, 0) <= 524288 AS fits
    FROM unnest($1::text[]) WITH ORDINALITY AS e (id, place)
    JOIN perdure.run AS r ON r.id = e.id
    JOIN perdure.ended AS d ON d.seq = r.seq
    WINDOW page AS (ORDER BY e.place ROWS UNBOUNDED PRECEDING)
) AS f;

-- name: missing
-- Of some ids, those that no run has. Uses the unique index of run ids.
SELECT e.id FROM unnest($1::text[]) AS e (id)
WHERE NOT EXISTS (SELECT 1 FROM perdure.run AS r WHERE r.id = e.id);

-- name: history
-- A page of a run's checkpoints, as JSON, and whether there are more. Uses the unique index of run ids.
SELECT c.page::text, c.more
FROM perdure.run AS r CROSS JOIN LATERAL perdure.checkpoints_of(r.seq, $2, $3) AS c WHERE r.id = $1;

-- name: find
-- One checkpoint, as JSON. Uses the primary key.
SELECT json_agg(json_build_object(
    'key', c.key, 'kind', c.kind, 'outcome', c.outcome, 'body', c.body, 'attempts', c.attempts, 'digest', c.digest,
    'at', c.at, 'started_at', c.started_at, 'saved_at', c.saved_at, 'position', c.position
))::text
FROM perdure.checkpoint AS c WHERE c.run = (SELECT seq FROM perdure.run WHERE id = $1) AND c.key = $2;

-- name: signals
-- A page of the signals that wait at a run, as JSON, and whether there are more. Uses the unique index of run ids.
SELECT s.page::text, s.more
FROM perdure.run AS r CROSS JOIN LATERAL perdure.signals_of(r.seq, $2, $3) AS s WHERE r.id = $1;

-- name: ahead
-- How many ready runs of its queue come before a queued run, of those lanes that are not paused and that a live worker
-- serves, if any does. Walks the workers, and live_ready and live_ready_session for each lane of the queue, up to $2.
SELECT count(*)
FROM (
    SELECT 1
    FROM perdure.run AS r
    JOIN perdure.live AS own ON own.seq = r.seq AND own.state = 'queued'
    JOIN perdure.lane AS mine ON mine.id = own.lane
    JOIN perdure.lane AS a ON a.queue = mine.queue
    CROSS JOIN LATERAL (
        (
            SELECT 1 FROM perdure.live AS q
            WHERE q.lane = a.id AND q.owner = 0 AND q.state = 'queued' AND q.held IS NULL
                AND (q.priority, q.place) < (own.priority, coalesce(own.place, 9223372036854775807))
            LIMIT $2
        )
        UNION ALL
        (
            SELECT 1 FROM perdure.live AS q
            WHERE q.lane = a.id AND q.owner = own.owner AND q.owner <> 0 AND q.state = 'queued' AND q.held IS NULL
                AND (q.priority, q.place) < (own.priority, coalesce(own.place, 9223372036854775807))
            LIMIT $2
        )
    ) AS q
    WHERE r.id = $1
        AND a.id = ANY (perdure.unpaused(ARRAY[a.id]))
        AND EXISTS (
            SELECT 1 FROM perdure.worker AS w JOIN perdure.lease AS t ON t.worker = w.id
            WHERE t.until > coalesce($3, perdure.clock_ms()) AND a.id = ANY (perdure.served(w.id))
        )
    LIMIT $2
) AS before;

-- name: counts
-- How many runs of each workflow are in each state, by queue, as JSON. Walks the tallies, and of runs those that are
-- running, scheduled or waiting, by live_owned and live_away; and what is not in the tallies yet.
WITH away AS MATERIALIZED (
    SELECT lane, state, count(*) AS runs FROM perdure.live
    WHERE state IN ('scheduled', 'waiting') GROUP BY lane, state
    UNION ALL
    SELECT lane, state, count(*) FROM perdure.live WHERE state = 'running' GROUP BY lane, state
),
total AS (
    SELECT
        t.lane, sum(t.runs) AS runs, sum(t.succeeded) AS succeeded, sum(t.failed) AS failed, sum(t.cancelled) AS cancelled
    FROM (
        SELECT lane, runs, succeeded, failed, cancelled FROM perdure.tally
        UNION ALL
        SELECT (word ->> 'lane')::integer, (word ->> 'runs')::bigint, 0, 0, 0 FROM perdure.recheck
        WHERE word ->> 'what' = 'count'
    ) AS t
    GROUP BY t.lane
),
counted AS (
    SELECT lane, state, runs FROM away
    UNION ALL
    SELECT lane, 'succeeded', succeeded FROM total
    UNION ALL
    SELECT lane, 'failed', failed FROM total
    UNION ALL
    SELECT lane, 'cancelled', cancelled FROM total
    UNION ALL
    SELECT
        t.lane, 'queued',
        t.runs - t.succeeded - t.failed - t.cancelled
        - coalesce((SELECT sum(a.runs) FROM away AS a WHERE a.lane = t.lane), 0)
    FROM total AS t
)
SELECT json_agg(json_build_object('queue', queue, 'workflow', workflow, 'state', state, 'runs', runs))::text
FROM (
    SELECT a.queue, a.workflow, c.state, sum(c.runs)::bigint AS runs
    FROM counted AS c JOIN perdure.lane AS a ON a.id = c.lane
    WHERE c.runs > 0
    GROUP BY a.queue, a.workflow, c.state
) AS grouped;

-- name: workers
-- The live incarnations, as JSON. Walks the workers, which are few, and live_owned for each.
SELECT json_agg(json_build_object(
    'id', w.id, 'name', w.name, 'host', w.host, 'pid', w.pid, 'queues', w.queues, 'workflows', w.workflows,
    'versions', coalesce((
        SELECT json_object_agg(v.workflow, v.versions)
        FROM (
            SELECT w.versions[i] AS workflow, json_agg(w.versions[i + 1]) AS versions
            FROM generate_series(1, cardinality(w.versions), 2) AS i GROUP BY 1
        ) AS v
    ), '{}'),
    'sessions', w.sessions, 'concurrency', w.concurrency, 'started_at', w.started_at, 'lease_until', e.until,
    'running', (SELECT count(*) FROM perdure.live AS l WHERE l.worker = w.id AND l.state = 'running'),
    'owned_sessions', (SELECT count(*) FROM perdure.session AS s WHERE s.owner = w.id)
) ORDER BY w.id)::text
FROM perdure.worker AS w JOIN perdure.lease AS e ON e.worker = w.id
WHERE e.until > coalesce($1, perdure.clock_ms());

-- name: batch
-- How far a batch has come, as JSON. Uses the primary key.
SELECT json_agg(json_build_object(
    'id', id, 'total', total, 'succeeded', succeeded, 'failed', failed, 'cancelled', cancelled, 'callback', callback
))::text
FROM perdure.batch WHERE id = $1;

-- name: revisions
-- Changes of scopes (all, or one), latest first, as JSON. Walks the primary key, or revision_scope.
SELECT json_agg(json_build_array(
    number, kind, name, who, at, old::json, new::json, was_paused, paused
) ORDER BY number DESC)::text
FROM (
    SELECT * FROM perdure.revision
    WHERE $1::text IS NULL OR (kind = $1 AND name = $2)
    ORDER BY number DESC LIMIT $3
) AS latest;

-- name: lanes
-- The lanes with the counts of their runs that ended, as JSON. Walks the tallies.
SELECT json_agg(json_build_array(
    a.id, a.workflow, json_build_object('succeeded', t.succeeded, 'failed', t.failed, 'cancelled', t.cancelled)
))::text
FROM perdure.lane AS a
JOIN (
    SELECT lane, sum(succeeded)::bigint AS succeeded, sum(failed)::bigint AS failed, sum(cancelled)::bigint AS cancelled
    FROM perdure.tally GROUP BY lane
) AS t ON t.lane = a.id;

-- name: keepers
-- Those because of which runs were passed over, and that have told that they do not live any more, a bounded number.
SELECT kept FROM perdure.over LIMIT $1;

-- name: empty
-- Batches without runs and callback that were opened before a time, a bounded number. Uses batch_empty.
SELECT id FROM perdure.batch WHERE empty_since <= $1 ORDER BY empty_since LIMIT $2;

-- name: sizes
-- How many rows are kept of each run, in their order. Counts them by primary keys.
SELECT
    (SELECT count(*) FROM perdure.checkpoint AS c WHERE c.run = e.seq)
    + (SELECT count(*) FROM perdure.signal AS s WHERE s.run = e.seq)
FROM unnest($1::bigint[]) WITH ORDINALITY AS e (seq, place) ORDER BY e.place;

-- name: first_ended
-- The first runs of some lanes and states that ended, in the order in which they ended, each with how many of them there
-- are in all, if $4 asks for that: at one moment, so that two that prune at once do not take more than there are to be
-- taken. Walks ended_prunable; and the tallies and ended_kept.
SELECT
    d.finish, d.finished_at, d.seq,
    CASE WHEN $4 THEN (
        SELECT sum(CASE e.state WHEN 'succeeded' THEN t.succeeded WHEN 'failed' THEN t.failed ELSE t.cancelled END)::bigint
        FROM unnest($1::int[], $2::text[]) AS e (lane, state) JOIN perdure.tally AS t ON t.lane = e.lane
    ) - (
        SELECT count(*)
        FROM unnest($1::int[], $2::text[]) AS e (lane, state)
        JOIN perdure.ended AS k ON k.kept IS NOT NULL AND k.lane = e.lane AND k.state = e.state
    ) END AS runs
FROM unnest($1::int[], $2::text[]) AS e (lane, state)
CROSS JOIN LATERAL (
    SELECT x.finish, x.finished_at, x.seq FROM perdure.ended AS x
    WHERE x.lane = e.lane AND x.state = e.state AND x.kept IS NULL
    ORDER BY x.finish LIMIT $3
) AS d
ORDER BY d.finish LIMIT $3;

-- name: facts
-- Of runs, those that are queued or held, with what their lane, their group and their session say, as JSON. Uses primary
-- keys, live_holder, live_seat.
SELECT json_agg(json_build_object(
    'run', l.seq,
    'state', l.state,
    'held', CASE WHEN l.held = 'group' AND l.grp IS NULL THEN NULL ELSE l.held END,
    'queue', a.queue,
    'workflow', a.workflow,
    'version', a.version,
    'served', EXISTS (
        SELECT 1 FROM perdure.worker AS w JOIN perdure.lease AS t ON t.worker = w.id
        WHERE t.until > coalesce($2, perdure.clock_ms()) AND a.id = ANY (perdure.served(w.id))
            AND NOT EXISTS (SELECT 1 FROM perdure.scope AS p WHERE p.paused AND (
                p.kind = 'namespace' OR (p.kind = 'queue' AND p.name = a.queue)
                OR (p.kind = 'workflow' AND p.name = a.workflow)
            ))
    ),
    'group', coalesce(g.key, ''),
    'most', coalesce(g.most, 0),
    'group_paused', coalesce(g.paused, false),
    'slots', (SELECT count(*) FROM perdure.live AS h WHERE h.grp = l.grp AND h.slot = 1),
    'holder', (
        SELECT json_build_array(h.seq, r.id) FROM perdure.live AS h JOIN perdure.run AS r ON r.seq = h.seq
        WHERE h.grp = l.grp AND h.slot = 1 ORDER BY h.priority, h.seq LIMIT 1
    ),
    'session', coalesce(s.key, ''),
    'owner', (SELECT w.name FROM perdure.worker AS w WHERE w.id = s.owner),
    'seats', (SELECT count(*) FROM perdure.live AS p WHERE p.session = l.session AND p.seat = 1)
))::text
FROM unnest($1::bigint[]) AS e (seq)
JOIN perdure.live AS l ON l.seq = e.seq AND l.seq = ANY ($1)
JOIN perdure.lane AS a ON a.id = l.lane
LEFT JOIN perdure.grp AS g ON g.id = l.grp
LEFT JOIN perdure.session AS s ON s.id = l.session
WHERE l.state = 'queued' OR (l.state = 'scheduled' AND l.held IS NOT NULL);

-- name: openers
-- The transaction that has written to `run`, or locked it, for the longest, if it is longer than a start of a child waits
-- for it; what a user may not see of others is NULL. Walks the locks and the sessions.
SELECT
    a.pid, coalesce(nullif(a.application_name, ''), 'no name') AS application, a.usename::text AS role, a.state,
    (extract(epoch FROM a.xact_start) * 1000)::bigint AS since
FROM pg_locks AS l
JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.relation = 'perdure.run'::regclass
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.granted
    AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND (a.xact_start < clock_timestamp() - interval '100 ms') IS NOT FALSE
ORDER BY a.xact_start
LIMIT 1;

-- name: pauses
-- The scopes that are paused, by whom and since when, as JSON: all but groups, and the groups that are named.
SELECT json_agg(json_build_array(s.kind, s.name, v.who, v.at))::text
FROM perdure.scope AS s
CROSS JOIN LATERAL (
    SELECT x.who, x.at FROM perdure.revision AS x
    WHERE x.kind = s.kind AND x.name = s.name AND x.paused AND NOT x.was_paused
    ORDER BY x.number DESC LIMIT 1
) AS v
WHERE s.paused AND (s.kind <> 'group' OR s.name = ANY ($1::text[]));

-- name: budgets
-- The limits and rates that claims have to keep to: all but those of groups, and those of the groups that are named, as
-- JSON. Uses scope_budget.
SELECT json_agg(json_build_array(kind, name, running, rate_count, rate_period, rate_burst, debt, debt_at))::text
FROM perdure.scope
WHERE budget AND (kind <> 'group' OR name = ANY ($1::text[]));

-- name: running
-- How many runs of each queue and workflow are running, as JSON. Walks live_owned, and nothing but it.
SELECT json_agg(json_build_array(a.queue, a.workflow, n.runs))::text
FROM (SELECT lane, count(*) AS runs FROM perdure.live WHERE state = 'running' GROUP BY lane) AS n
JOIN perdure.lane AS a ON a.id = n.lane;

-- name: queues
-- One row for each lane and for each kind of what is live in it or has ended since $1, and whether a live worker serves the
-- queue, as JSON; what is ready in a lane that is paused, in a session that has an owner, or in a lane that no live worker
-- serves is told apart. Walks the workers, live_ready, live_ready_session, live_owned, live_away, live_line, live_holder and
-- live_seat, and of ended_prunable what has ended since.
WITH live_worker AS MATERIALIZED (
    SELECT w.id, w.queues, perdure.served(w.id) AS lanes
    FROM perdure.worker AS w JOIN perdure.lease AS t ON t.worker = w.id
    WHERE t.until > coalesce($2, perdure.clock_ms())
),
open AS MATERIALIZED (
    SELECT e AS lane FROM unnest(perdure.unpaused(ARRAY(SELECT a.id FROM perdure.lane AS a))) AS e
),
found (lane, what, runs, oldest) AS (
    SELECT
        r.lane,
        CASE
            WHEN NOT EXISTS (SELECT 1 FROM open AS o WHERE o.lane = r.lane) THEN 'paused'
            WHEN r.owner > 0 THEN 'session'
            WHEN EXISTS (SELECT 1 FROM live_worker AS w WHERE r.lane = ANY (w.lanes)) THEN 'ready'
            ELSE 'unserved'
        END,
        r.runs, r.oldest
    FROM (
        SELECT lane, 0 AS owner, count(*) AS runs, min(place) AS oldest
        FROM perdure.live WHERE state = 'queued' AND held IS NULL AND owner = 0 GROUP BY lane
        UNION ALL
        SELECT lane, owner, count(*), min(place)
        FROM perdure.live WHERE state = 'queued' AND held IS NULL AND owner <> 0 GROUP BY lane, owner
    ) AS r
    UNION ALL
    SELECT lane, 'running', count(*), NULL FROM perdure.live WHERE state = 'running' GROUP BY lane
    UNION ALL
    SELECT lane, CASE WHEN held = 'rate' THEN held ELSE state END, count(*), NULL
    FROM perdure.live WHERE state IN ('scheduled', 'waiting') GROUP BY 1, 2
    UNION ALL
    SELECT l.lane, CASE WHEN l.held = 'paused' THEN 'group paused' ELSE 'group' END, count(*), NULL
    FROM perdure.live AS l WHERE l.slot = 1 AND l.state = 'queued' AND l.held IN ('group', 'paused') GROUP BY 1, 2
    UNION ALL
    SELECT lane, 'group', count(*), NULL FROM perdure.live WHERE slot = 2 GROUP BY lane
    UNION ALL
    SELECT lane, 'session', count(*), NULL FROM perdure.live WHERE seat = 2 GROUP BY lane
    UNION ALL
    SELECT a.id, 'ended', e.runs, NULL
    FROM perdure.lane AS a
    CROSS JOIN LATERAL (
        SELECT sum(s.runs)::bigint AS runs
        FROM unnest(ARRAY['succeeded', 'failed', 'cancelled']) AS t (state)
        CROSS JOIN LATERAL (
            WITH RECURSIVE back (finish, finished_at) AS (
                (
                    SELECT x.finish, x.finished_at FROM perdure.ended AS x
                    WHERE x.lane = a.id AND x.state = t.state AND x.kept IS NULL ORDER BY x.finish DESC LIMIT 1
                )
                UNION ALL
                SELECT y.finish, y.finished_at FROM back AS b
                CROSS JOIN LATERAL (
                    SELECT x.finish, x.finished_at FROM perdure.ended AS x
                    WHERE x.lane = a.id AND x.state = t.state AND x.kept IS NULL AND x.finish < b.finish
                    ORDER BY x.finish DESC LIMIT 1
                ) AS y
                WHERE b.finished_at > $1
            )
            SELECT count(*) AS runs FROM back WHERE finished_at > $1
        ) AS s
    ) AS e
    WHERE e.runs > 0
)
SELECT json_agg(json_build_array(
    a.queue, a.workflow, a.version,
    EXISTS (SELECT 1 FROM live_worker AS w WHERE a.queue = ANY (w.queues)),
    f.what, f.runs,
    CASE WHEN f.what IN ('ready', 'unserved') THEN (
        SELECT r.created_at FROM perdure.run AS r WHERE r.seq >= f.oldest ORDER BY r.seq LIMIT 1
    ) END
))::text
FROM perdure.lane AS a LEFT JOIN found AS f ON f.lane = a.id;

-- name: listen
-- Notes that a process wants to be told of a topic for some time. Uses the primary key.
INSERT INTO perdure.listener (id, topic, until) VALUES ($1, $2, perdure.clock_ms() + $3)
ON CONFLICT (topic, id) DO UPDATE SET until = excluded.until;

-- name: unlisten
-- Notes that it does not any more, and forgets those that are gone. Walks the listeners, which are few.
DELETE FROM perdure.listener WHERE (topic = $2 AND id = $1) OR until < perdure.clock_ms();
