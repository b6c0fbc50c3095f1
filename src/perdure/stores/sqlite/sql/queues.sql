-- What is in the queues. Reads only; no statement here walks runs that ended longer ago than a minute.

-- name: report
-- One row for each lane and for each kind of what is live in it or has ended lately, and whether a live worker serves
-- the queue; what is ready in a lane that is paused, in a session that has an owner, or in a lane that no live worker
-- serves is told apart. Walks the workers and the lanes. Counts by run_ready, run_away, run_line, run_over, run_holder
-- and run_seat; of what is ready it looks at the first run of each priority, skipping from one to the next; halves
-- run_prunable until it finds where the last minute begins.
WITH RECURSIVE
span (lane, state, low, high) AS (
    -- Between `low` and `high` is, by the order of finishing, the first one that ended after :since.
    SELECT
        l.id, s.value,
        (
            SELECT min(finish) FROM run INDEXED BY run_prunable
            WHERE lane = l.id AND state = s.value AND finished_at IS NOT NULL AND kept IS NULL
        ),
        (
            SELECT max(finish) + 1 FROM run INDEXED BY run_prunable
            WHERE lane = l.id AND state = s.value AND finished_at IS NOT NULL AND kept IS NULL
        )
    FROM lane AS l CROSS JOIN json_each('["succeeded", "failed", "cancelled"]') AS s
    UNION ALL
    SELECT
        p.lane, p.state,
        CASE WHEN :since < (
            SELECT r.finished_at FROM run AS r INDEXED BY run_prunable
            WHERE r.lane = p.lane AND r.state = p.state AND r.finish >= (p.low + p.high) / 2
                AND r.finished_at IS NOT NULL AND r.kept IS NULL
            ORDER BY r.finish LIMIT 1
        ) THEN p.low ELSE (p.low + p.high) / 2 + 1 END,
        CASE WHEN :since < (
            SELECT r.finished_at FROM run AS r INDEXED BY run_prunable
            WHERE r.lane = p.lane AND r.state = p.state AND r.finish >= (p.low + p.high) / 2
                AND r.finished_at IS NOT NULL AND r.kept IS NULL
            ORDER BY r.finish LIMIT 1
        ) THEN (p.low + p.high) / 2 ELSE p.high END
    FROM span AS p WHERE p.low < p.high
),
head (lane, owner, priority) AS (
    SELECT lane, owner, priority
    FROM (
        SELECT lane, owner, priority FROM run INDEXED BY run_ready
        WHERE state = 'queued' AND held IS NULL ORDER BY lane, owner, priority LIMIT 1
    )
    UNION ALL
    SELECT n.lane, n.owner, n.priority
    FROM head AS h CROSS JOIN run AS n ON n.seq = coalesce(
        (
            SELECT r.seq FROM run AS r INDEXED BY run_ready
            WHERE r.lane = h.lane AND r.owner = h.owner AND r.priority > h.priority
                AND r.state = 'queued' AND r.held IS NULL
            ORDER BY r.priority LIMIT 1
        ),
        (
            SELECT r.seq FROM run AS r INDEXED BY run_ready
            WHERE r.lane = h.lane AND r.owner > h.owner AND r.state = 'queued' AND r.held IS NULL
            ORDER BY r.owner, r.priority LIMIT 1
        ),
        (
            SELECT r.seq FROM run AS r INDEXED BY run_ready
            WHERE r.lane > h.lane AND r.state = 'queued' AND r.held IS NULL
            ORDER BY r.lane, r.owner, r.priority LIMIT 1
        )
    )
),
ready (lane, owner, runs, oldest) AS (
    SELECT
        c.lane, c.owner, c.runs,
        (
            SELECT min(
                (
                    SELECT r.created_at FROM run AS r INDEXED BY run_ready
                    WHERE r.lane = h.lane AND r.owner = h.owner AND r.priority = h.priority
                        AND r.state = 'queued' AND r.held IS NULL
                    ORDER BY r.place, r.seq LIMIT 1
                )
            )
            FROM head AS h WHERE h.lane = c.lane AND h.owner = c.owner
        )
    FROM (
        SELECT lane, owner, count(*) AS runs FROM run INDEXED BY run_ready
        WHERE state = 'queued' AND held IS NULL GROUP BY lane, owner
    ) AS c
),
found (lane, what, runs, oldest) AS (
    SELECT
        r.lane,
        CASE
            WHEN l.paused THEN 'paused'
            WHEN r.owner > 0 THEN 'session'
            WHEN EXISTS (
                SELECT 1
                FROM worker AS w
                CROSS JOIN worker_lane AS s ON s.worker = w.id AND s.owner = r.owner AND s.lane = r.lane
                WHERE w.lease_until > :now
            ) THEN 'ready'
            ELSE 'unserved'
        END,
        r.runs, iif(l.paused OR r.owner > 0, NULL, r.oldest)
    FROM ready AS r CROSS JOIN lane AS l ON l.id = r.lane
    UNION ALL
    SELECT id, 'running', running, NULL FROM lane WHERE running > 0
    UNION ALL
    SELECT lane, CASE WHEN held = 'rate' THEN held ELSE state END, count(*), NULL
    FROM run INDEXED BY run_away WHERE state IN ('scheduled', 'waiting') GROUP BY 1, 2
    UNION ALL
    SELECT r.lane, 'group', count(*), NULL
    FROM grp AS g CROSS JOIN run AS r INDEXED BY run_line ON r.grp = g.id AND r.slot = 2 GROUP BY r.lane
    UNION ALL
    SELECT lane, 'group', count(*), NULL FROM run INDEXED BY run_over WHERE slot = 1 AND held = 'group' GROUP BY lane
    UNION ALL
    SELECT r.lane, 'group paused', count(*), NULL
    FROM grp AS g CROSS JOIN run AS r INDEXED BY run_holder ON r.grp = g.id AND r.slot = 1
    WHERE g.paused AND r.held = 'paused' GROUP BY r.lane
    UNION ALL
    SELECT r.lane, 'session', count(*), NULL
    FROM session AS s CROSS JOIN run AS r INDEXED BY run_seat ON r.session = s.id AND r.seat = 2 GROUP BY r.lane
    UNION ALL
    SELECT
        p.lane, 'ended',
        (
            SELECT count(*) FROM run AS r INDEXED BY run_prunable
            WHERE r.lane = p.lane AND r.state = p.state AND r.finish >= p.low
                AND r.finished_at IS NOT NULL AND r.kept IS NULL
        ),
        NULL
    FROM span AS p WHERE p.low >= p.high
)
SELECT json_group_array(
    json_array(
        l.queue, l.workflow, l.version,
        json(iif(
            EXISTS (
                SELECT 1 FROM worker AS w CROSS JOIN json_each(w.queues) AS q
                WHERE q.value = l.queue AND w.lease_until > :now
            ),
            'true', 'false'
        )),
        f.what, f.runs, f.oldest
    )
)
FROM lane AS l LEFT JOIN found AS f ON f.lane = l.id;
