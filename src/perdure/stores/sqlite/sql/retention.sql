-- What leaves the store, and when. `lanes`, `keepers`, `ended`, `empty`, `sizes` and `family` read; the others need the
-- write lock.

-- name: lanes
-- The lanes with the counts of their runs that ended, and how many of these prune has passed over. Walks the lanes,
-- and run_kept once.
WITH passed AS MATERIALIZED (
    SELECT lane, state, count(*) AS runs FROM run INDEXED BY run_kept
    WHERE kept IS NOT NULL AND finished_at IS NOT NULL GROUP BY lane, state
)
SELECT json_group_array(
    json_array(
        l.id, l.workflow,
        json_object('succeeded', l.succeeded, 'failed', l.failed, 'cancelled', l.cancelled),
        (SELECT json_group_object(p.state, p.runs) FROM passed AS p WHERE p.lane = l.id)
    )
)
FROM lane AS l;

-- name: keepers
-- Those for which runs were passed over, and that do not live any more, a bounded number: a batch lives until all of
-- its runs, and its callback, have ended. Skips from one to the next on run_kept.
WITH RECURSIVE keepers (name) AS (
    SELECT min(kept) FROM run INDEXED BY run_kept WHERE kept IS NOT NULL AND finished_at IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(r.kept) FROM run AS r INDEXED BY run_kept
        WHERE r.kept IS NOT NULL AND r.finished_at IS NOT NULL AND r.kept > k.name
    )
    FROM keepers AS k WHERE k.name IS NOT NULL
)
SELECT json_group_array(name)
FROM (
    SELECT k.name FROM keepers AS k
    WHERE k.name IS NOT NULL
        AND CASE
            WHEN k.name GLOB 'run:*'
            THEN NOT EXISTS (SELECT 1 FROM run AS p WHERE p.id = substr(k.name, 5) AND p.finished_at IS NULL)
            ELSE NOT EXISTS (
                SELECT 1 FROM batch AS b
                WHERE b.id = substr(k.name, 7)
                    AND (
                        b.succeeded + b.failed + b.cancelled < b.total
                        OR EXISTS (SELECT 1 FROM run AS c WHERE c.id = b.callback AND c.finished_at IS NULL)
                    )
            )
        END
    LIMIT :limit
);

-- name: let_go
-- Has runs looked at again that were passed over. Uses run_kept.
UPDATE run SET kept = NULL
WHERE kept IS NOT NULL AND finished_at IS NOT NULL AND kept IN (SELECT value FROM json_each(:keepers));

-- name: ended
-- The runs of a lane that ended in a state, in the order in which they ended. Walks run_prunable.
SELECT finish, finished_at, seq FROM run INDEXED BY run_prunable
WHERE lane = :lane AND state = :state AND finished_at IS NOT NULL AND kept IS NULL
ORDER BY finish;

-- name: empty
-- Batches without runs and callback that were opened before a time, a bounded number. Uses batch_empty.
SELECT json_group_array(id) FROM (SELECT id FROM batch WHERE empty_since <= :before ORDER BY empty_since LIMIT :limit);

-- name: drop_empty
-- Removes batches that have nothing. Uses the primary key.
DELETE FROM batch WHERE id IN (SELECT value FROM json_each(:batches)) AND empty_since IS NOT NULL AND total = 0;

-- name: sizes
-- How many rows are kept of each run. Counts them by checkpoint_key and the primary key of signal.
SELECT json_group_array(
    (SELECT count(*) FROM checkpoint AS c WHERE c.run = e.value)
    + (SELECT count(*) FROM signal AS s WHERE s.run = e.value)
)
FROM json_each(:runs) AS e;

-- name: pass_over
-- Of runs that ended, marks those whose parent or batch lives. Uses primary keys and the unique index of run ids.
UPDATE run SET kept = found.keeper
FROM (
    SELECT
        r.seq,
        CASE
            WHEN EXISTS (SELECT 1 FROM run AS p WHERE p.id = r.parent AND p.finished_at IS NULL) THEN 'run:' || r.parent
            WHEN EXISTS (
                SELECT 1 FROM batch AS b
                WHERE b.id = r.batch
                    AND (
                        b.succeeded + b.failed + b.cancelled < b.total
                        OR EXISTS (SELECT 1 FROM run AS c WHERE c.id = b.callback AND c.finished_at IS NULL)
                    )
            ) THEN 'batch:' || r.batch
        END AS keeper
    FROM json_each(:runs) AS e CROSS JOIN run AS r ON r.seq = e.value
    WHERE r.finished_at IS NOT NULL
) AS found
WHERE run.seq = found.seq AND found.keeper IS NOT NULL;

-- name: prune
-- Removes runs that have ended, as it was told, and that were not passed over. Uses the primary key; fires run_removed.
DELETE FROM run
WHERE (seq, finish) IN (SELECT json_extract(value, '$[1]'), json_extract(value, '$[0]') FROM json_each(:ended))
    AND finished_at IS NOT NULL
    AND kept IS NULL;

-- name: family
-- A run and all that descends from it, and whether each has not ended. Uses run_child.
WITH RECURSIVE tree (seq, id, live) AS (
    SELECT r.seq, r.id, r.finished_at IS NULL FROM run AS r WHERE r.seq = :run
    UNION
    SELECT c.seq, c.id, c.finished_at IS NULL
    FROM tree AS t CROSS JOIN run AS c INDEXED BY run_child ON c.parent = t.id
)
SELECT json_group_array(json_array(seq, live)) FROM tree;

-- name: delete
-- Removes runs. Uses the primary key; fires run_removed.
DELETE FROM run WHERE seq IN (SELECT value FROM json_each(:runs));
