-- What is in the queues. Reads only; no statement here looks at runs that ended longer ago than a minute.

-- name: report
-- One row for each queue, with what is live in it. Walks run_ready, run_owned, run_timer, run_line, run_holder, run_seat
-- and the waits.
WITH found (lane, what, runs, oldest) AS (
    SELECT lane, 'ready', count(*), min(created_at)
    FROM run INDEXED BY run_ready WHERE state = 'queued' AND held IS NULL GROUP BY lane
    UNION ALL
    SELECT lane, 'running', count(*), NULL FROM run INDEXED BY run_owned WHERE state = 'running' GROUP BY lane
    UNION ALL
    SELECT lane, CASE WHEN held = 'rate' THEN held ELSE state END, count(*), NULL
    FROM run INDEXED BY run_timer WHERE wake_at IS NOT NULL GROUP BY 1, 2
    UNION ALL
    SELECT lane, 'waiting', count(*), NULL
    FROM (
        SELECT r.lane
        FROM (SELECT DISTINCT run FROM wait) AS w CROSS JOIN run AS r ON r.seq = w.run
        WHERE r.state = 'waiting' AND r.wake_at IS NULL
    )
    GROUP BY lane
    UNION ALL
    SELECT r.lane, 'group', count(*), NULL
    FROM grp AS g CROSS JOIN run AS r INDEXED BY run_line ON r.grp = g.id AND r.slot = 2 GROUP BY r.lane
    UNION ALL
    SELECT r.lane, 'group paused', count(*), NULL
    FROM grp AS g CROSS JOIN run AS r INDEXED BY run_holder ON r.grp = g.id AND r.slot = 1
    WHERE g.paused AND r.held = 'paused' GROUP BY r.lane
    UNION ALL
    SELECT r.lane, 'session', count(*), NULL
    FROM session AS s CROSS JOIN run AS r INDEXED BY run_seat ON r.session = s.id AND r.seat = 2 GROUP BY r.lane
    UNION ALL
    SELECT lane, 'ended', count(*), NULL FROM run INDEXED BY run_finished WHERE finished_at > :since GROUP BY lane
)
SELECT json_group_array(json_array(queue, what, runs, oldest))
FROM (
    SELECT l.queue, f.what, sum(f.runs) AS runs, min(f.oldest) AS oldest
    FROM lane AS l LEFT JOIN found AS f ON f.lane = l.id
    GROUP BY l.queue, f.what
);
