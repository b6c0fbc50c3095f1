-- What is in the queues. Reads only; no statement here walks runs that ended longer ago than a minute.

-- name: report
-- One row for each queue, with what is live in it and what has ended lately. Walks run_ready, run_away, run_line,
-- run_over, run_holder and run_seat; halves run_prunable until it finds where the last minute begins.
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
found (lane, what, runs, oldest) AS (
    SELECT lane, 'ready', count(*), min(created_at)
    FROM run INDEXED BY run_ready WHERE state = 'queued' AND held IS NULL GROUP BY lane
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
SELECT json_group_array(json_array(queue, what, runs, oldest))
FROM (
    SELECT l.queue, f.what, sum(f.runs) AS runs, min(f.oldest) AS oldest
    FROM lane AS l LEFT JOIN found AS f ON f.lane = l.id
    GROUP BY l.queue, f.what
);
