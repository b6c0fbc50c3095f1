-- The statements that make runs. All but `existing` write: they need the write lock.

-- name: lanes
-- Makes the lanes that do not exist yet. Uses the unique index of lane.
INSERT OR IGNORE INTO lane (queue, workflow, version)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:lanes);

-- name: lane_ids
-- The numbers of lanes. Uses the unique index of lane.
SELECT json_group_array(json_array(l.queue, l.workflow, l.version, l.id))
FROM json_each(:lanes) AS e
CROSS JOIN lane AS l
    ON l.queue = json_extract(e.value, '$[0]')
    AND l.workflow = json_extract(e.value, '$[1]')
    AND l.version = json_extract(e.value, '$[2]');

-- name: groups
-- Makes the groups that do not exist yet, with the limit of their first start unless one is stored. Uses the unique
-- index of grp.
INSERT INTO grp (key, queue, asked, most, paused)
SELECT
    json_extract(e.value, '$[1]'),
    json_extract(e.value, '$[0]'),
    json_extract(e.value, '$[2]'),
    coalesce(s.running, json_extract(e.value, '$[2]')),
    coalesce(s.paused, 0)
FROM json_each(:groups) AS e
LEFT JOIN scope AS s ON s.kind = 'group' AND s.name = json_extract(e.value, '$[1]')
WHERE true
ON CONFLICT (key, queue) DO NOTHING;

-- name: group_ids
-- Groups with their limits. Uses the unique index of grp.
SELECT json_group_array(json_array(g.queue, g.key, g.id, g.asked, g.most))
FROM json_each(:groups) AS e
CROSS JOIN grp AS g ON g.key = json_extract(e.value, '$[1]') AND g.queue = json_extract(e.value, '$[0]');

-- name: sessions
-- Makes the sessions that do not exist yet. Uses the unique index of session.
INSERT OR IGNORE INTO session (key, queue)
SELECT json_extract(value, '$[1]'), json_extract(value, '$[0]') FROM json_each(:sessions);

-- name: session_ids
-- The numbers of sessions. Uses the unique index of session.
SELECT json_group_array(json_array(s.queue, s.key, s.id))
FROM json_each(:sessions) AS e
CROSS JOIN session AS s ON s.key = json_extract(e.value, '$[1]') AND s.queue = json_extract(e.value, '$[0]');

-- name: last
-- The highest number that a run ever had. Uses the primary key.
SELECT max(newest, coalesce((SELECT max(seq) FROM run), 0)) FROM turn;

-- name: runs
-- Makes runs in the order of the batch; an id that exists is left alone. Uses the unique index of run ids.
-- A child that was given no parent is that of the run whose checkpoint starts it.
INSERT INTO run (
    seq, id, lane, priority, state, wake_at, deadline, max_crashes, created_at, parent, place
)
SELECT
    :last + 1 + e.key,
    json_extract(e.value, '$[0]'),
    json_extract(e.value, '$[1]'),
    json_extract(e.value, '$[2]'),
    json_extract(e.value, '$[3]'),
    json_extract(e.value, '$[4]'),
    json_extract(e.value, '$[5]'),
    json_extract(e.value, '$[6]'),
    :now,
    coalesce(
        json_extract(e.value, '$[7]'),
        (SELECT p.id FROM run AS p WHERE p.seq = json_extract(e.value, '$[8]'))
    ),
    (:last + 1 + e.key) << 20
FROM json_each(:runs) AS e
WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: tie
-- Ties runs just made to their groups and sessions. Uses the primary key.
UPDATE run SET
    grp = json_extract(e.value, '$[1]'),
    slot = CASE WHEN json_extract(e.value, '$[1]') IS NOT NULL THEN 0 END,
    place = CASE WHEN json_extract(e.value, '$[1]') IS NULL THEN place END,
    keep = json_extract(e.value, '$[2]'),
    session = json_extract(e.value, '$[3]')
FROM json_each(:ties) AS e
WHERE run.seq = :last + 1 + json_extract(e.value, '$[0]');

-- name: line_up
-- Runs just made that belong to a group or a session come into the queue like any other that was not in it: in order,
-- with all that the triggers of groups and sessions do. Walks the runs just made.
UPDATE run SET state = 'queued' WHERE seq > :last AND state = 'scheduled' AND wake_at IS NULL;

-- name: inputs
-- Keeps the inputs of the runs just made; those that were there have theirs. Uses the unique index of run ids.
INSERT INTO input (run, size, body)
SELECT r.seq, json_extract(e.value, '$[1]'), json_extract(e.value, '$[2]')
FROM json_each(:inputs) AS e CROSS JOIN run AS r ON r.id = json_extract(e.value, '$[0]')
WHERE true
ON CONFLICT (run) DO NOTHING;

-- name: existing
-- For each of the batch, whether its run was there before, and whether it has that workflow and input.
-- Uses the unique index of run ids.
SELECT json_group_array(
    json_array(
        e.key,
        r.seq <= :last,
        l.workflow = json_extract(e.value, '$[3]') AND coalesce(i.first, i.body) = json_extract(e.value, '$[2]')
    )
)
FROM json_each(:inputs) AS e
CROSS JOIN run AS r ON r.id = json_extract(e.value, '$[0]')
CROSS JOIN lane AS l ON l.id = r.lane
CROSS JOIN input AS i ON i.run = r.seq;

-- name: count
-- Adds runs just made to the counts of their lanes. Uses the primary key of lane.
UPDATE lane SET runs = runs + json_extract(e.value, '$[1]')
FROM json_each(:made) AS e
WHERE lane.id = json_extract(e.value, '$[0]');

-- name: mark
-- Gives runs just made a batch and a unique key. Uses the primary key.
UPDATE run SET
    batch = json_extract(e.value, '$[1]'),
    unique_key = json_extract(e.value, '$[2]'),
    debounced = json_extract(e.value, '$[3]')
FROM json_each(:marks) AS e
WHERE run.seq = :last + 1 + json_extract(e.value, '$[0]');

-- name: labels
-- Labels runs just made. Uses the primary key.
INSERT INTO label (run, key, value)
SELECT :last + 1 + json_extract(e.value, '$[0]'), v.key, v.value
FROM json_each(:labels) AS e CROSS JOIN json_each(e.value, '$[1]') AS v;

-- name: join_batches
-- Counts runs just made to their batches. Uses the primary key of batch.
INSERT INTO batch (id, total)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:batches)
WHERE true
ON CONFLICT (id) DO UPDATE SET total = total + excluded.total;

-- name: put_behind
-- Keeps of a run just made, which waits behind others, when it is due and what time it has. Uses the primary key.
UPDATE run SET due = :due, timeout = :timeout WHERE seq = :run;

-- name: wait_behind
-- Parks a run just made. Uses the primary key of wait.
INSERT INTO wait (run, key, what, target) VALUES (:run, :key, :what, :target);
