-- The statements that make runs. All but `existing` write: they need the write lock.

-- name: lanes
-- Makes the lanes that do not exist yet. Uses the unique index of lane.
INSERT OR IGNORE INTO lane (queue, workflow)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:lanes);

-- name: serve_lanes
-- Lets the workers that serve them know of lanes. Walks the workers, which are few.
INSERT OR IGNORE INTO worker_lane (worker, lane)
SELECT w.id, l.id
FROM json_each(:lanes) AS e
CROSS JOIN lane AS l ON l.queue = json_extract(e.value, '$[0]') AND l.workflow = json_extract(e.value, '$[1]')
CROSS JOIN worker AS w
WHERE EXISTS (SELECT 1 FROM json_each(w.queues) WHERE value = l.queue)
    AND EXISTS (SELECT 1 FROM json_each(w.workflows) WHERE value = l.workflow);

-- name: lane_ids
-- The numbers of lanes. Uses the unique index of lane.
SELECT json_group_array(json_array(l.queue, l.workflow, l.id))
FROM json_each(:lanes) AS e
CROSS JOIN lane AS l ON l.queue = json_extract(e.value, '$[0]') AND l.workflow = json_extract(e.value, '$[1]');

-- name: runs
-- Makes runs in the order of the batch; an id that exists is left alone. Uses the unique index of run ids.
-- A child that was given no parent is that of the run whose checkpoint starts it.
INSERT INTO run (id, lane, priority, state, wake_at, deadline, max_crashes, created_at, parent)
SELECT
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
    )
FROM json_each(:runs) AS e
WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: inputs
-- Keeps the inputs of the runs just made; those that were there have theirs. Uses the unique index of run ids.
INSERT INTO input (run, size, body)
SELECT r.seq, json_extract(e.value, '$[1]'), json_extract(e.value, '$[2]')
FROM json_each(:inputs) AS e CROSS JOIN run AS r ON r.id = json_extract(e.value, '$[0]')
WHERE true
ON CONFLICT (run) DO NOTHING;

-- name: existing
-- For each of the batch, whether its run was there before, and whether it has that lane and input.
-- Uses the unique index of run ids.
SELECT json_group_array(
    json_array(
        e.key, r.seq <= :before, r.lane = json_extract(e.value, '$[3]') AND i.body = json_extract(e.value, '$[2]')
    )
)
FROM json_each(:inputs) AS e
CROSS JOIN run AS r ON r.id = json_extract(e.value, '$[0]')
CROSS JOIN input AS i ON i.run = r.seq;

-- name: count
-- Adds runs just made to the counts of their lanes. Uses the primary key of lane.
UPDATE lane SET runs = runs + json_extract(e.value, '$[1]')
FROM json_each(:made) AS e
WHERE lane.id = json_extract(e.value, '$[0]');

-- name: mark
-- Gives runs just made what few runs have: a batch, a unique key. Uses the unique index of run ids.
UPDATE run SET batch = e.batch, unique_key = e.unique_key, debounced = e.debounced
FROM (
    SELECT
        json_extract(value, '$[0]') AS id,
        json_extract(value, '$[1]') AS batch,
        json_extract(value, '$[2]') AS unique_key,
        json_extract(value, '$[3]') AS debounced
    FROM json_each(:marks)
) AS e
WHERE run.id = e.id;

-- name: labels
-- Labels runs just made. Uses the unique index of run ids.
INSERT INTO label (run, key, value)
SELECT r.seq, v.key, v.value
FROM json_each(:labels) AS e
CROSS JOIN run AS r ON r.id = json_extract(e.value, '$[0]')
CROSS JOIN json_each(e.value, '$[1]') AS v;

-- name: join_batches
-- Counts runs just made to their batches. Uses the primary key of batch.
INSERT INTO batch (id, total)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:batches)
WHERE true
ON CONFLICT (id) DO UPDATE SET total = total + excluded.total;

-- name: wait_behind
-- Parks a run just made. Uses the primary key of wait.
INSERT INTO wait (run, key, what, target) VALUES (:run, :key, :what, :target);
