-- Why runs are kept from running: what decides it, read for the runs that are asked about.

-- name: facts
-- Of runs, those that are queued or held, with what their lane, their group and their session say, and whether a live
-- worker serves the lane (paused ones nobody serves). Walks the workers; uses primary keys, run_holder, run_seat.
SELECT json_group_array(
    json_object(
        'run', r.seq,
        'state', r.state,
        'held', r.held,
        'queue', l.queue,
        'workflow', l.workflow,
        'version', l.version,
        'served', json(CASE WHEN EXISTS (
            SELECT 1 FROM worker AS w CROSS JOIN worker_lane AS s ON s.worker = w.id AND s.owner = 0 AND s.lane = r.lane
            WHERE w.lease_until > :now
        ) THEN 'true' ELSE 'false' END),
        'group', coalesce(g.key, ''),
        'most', coalesce(g.most, 0),
        'group_paused', json(CASE WHEN g.paused THEN 'true' ELSE 'false' END),
        'slots', (SELECT count(*) FROM run AS h INDEXED BY run_holder WHERE h.grp = r.grp AND h.slot = 1),
        'holder', (
            SELECT json_array(h.seq, h.id) FROM run AS h INDEXED BY run_holder
            WHERE h.grp = r.grp AND h.slot = 1 ORDER BY h.priority, h.seq LIMIT 1
        ),
        'session', coalesce(s.key, ''),
        'owner', (SELECT w.name FROM worker AS w WHERE w.id = s.owner),
        'seats', (SELECT count(*) FROM run AS p INDEXED BY run_seat WHERE p.session = r.session AND p.seat = 1)
    )
)
FROM json_each(:runs) AS e
CROSS JOIN run AS r ON r.seq = e.value
CROSS JOIN lane AS l ON l.id = r.lane
LEFT JOIN grp AS g ON g.id = r.grp
LEFT JOIN session AS s ON s.id = r.session
WHERE r.state = 'queued' OR (r.state = 'scheduled' AND r.held IS NOT NULL);

-- name: pauses
-- The scopes that are paused, by whom and since when: all but groups, and the groups that are named. Walks the scopes.
SELECT json_group_array(json_array(s.kind, s.name, v.who, v.at))
FROM scope AS s
CROSS JOIN revision AS v ON v.number = (
    SELECT max(number) FROM revision
    WHERE kind = s.kind AND name = s.name AND paused AND NOT was_paused
)
WHERE s.paused AND (s.kind <> 'group' OR s.name IN (SELECT value FROM json_each(:groups)));
