-- Batches and labels: what ties runs together. Only `batch`, `open`, `taken` and `labelled` do not need the write lock.

-- name: open
-- With how many items a batch was opened that is there, and its callback. Uses the primary key.
SELECT items, callback FROM batch WHERE id = :batch;

-- name: begin
-- Makes a batch. Uses the primary key.
INSERT INTO batch (id, items, callback, empty_since)
VALUES (:batch, :items, :callback, CASE WHEN :items = 0 AND :callback IS NULL THEN :now END);

-- name: taken
-- The first of some ids that a run has which is not of the batch. Uses the unique index of run.
SELECT r.id FROM json_each(:runs) AS e CROSS JOIN run AS r ON r.id = e.value
WHERE r.batch IS NOT :batch LIMIT 1;

-- name: complete
-- Queues the callback of a batch of which nothing is left to wait for, or lets its delay run. Uses primary keys.
UPDATE run SET
    state = CASE WHEN due > :now THEN 'scheduled' ELSE 'queued' END,
    wake_at = CASE WHEN due > :now THEN due END,
    deadline = CASE WHEN timeout IS NULL THEN deadline ELSE max(coalesce(due, 0), :now) + timeout END,
    due = NULL,
    timeout = NULL
WHERE state = 'waiting'
    AND id = (
        SELECT b.callback FROM batch AS b WHERE b.id = :batch AND b.succeeded + b.failed + b.cancelled = b.total
    );

-- name: batch
-- How far a batch has come, as a list. Uses the primary key.
SELECT json_group_array(
    json_object(
        'id', id, 'total', total, 'succeeded', succeeded, 'failed', failed, 'cancelled', cancelled,
        'callback', callback
    )
)
FROM batch WHERE id = :batch;

-- name: labelled
-- How many labels a run has when it gets these. Uses the primary key.
SELECT
    (SELECT count(*) FROM json_each(:labels) WHERE value <> '')
    + (SELECT count(*) FROM label WHERE run = :run AND key NOT IN (SELECT key FROM json_each(:labels)));

-- name: label
-- Sets labels of a run. Uses the primary key.
INSERT OR REPLACE INTO label (run, key, value) SELECT :run, key, value FROM json_each(:labels) WHERE value <> '';

-- name: unlabel
-- Removes labels of a run. Uses the primary key.
DELETE FROM label WHERE run = :run AND key IN (SELECT key FROM json_each(:labels) WHERE value = '');
