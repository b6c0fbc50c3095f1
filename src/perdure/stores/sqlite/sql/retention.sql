-- What leaves the store, and when. `lanes`, `parents`, `ended` and `family` read; the others need the write lock.

-- name: lanes
-- The lanes with the counts of their runs that ended, and how many of these prune has passed over. Walks the lanes,
-- and run_kept.
SELECT json_group_array(
    json_array(
        l.id, l.workflow,
        json_object('succeeded', l.succeeded, 'failed', l.failed, 'cancelled', l.cancelled),
        (
            SELECT json_group_object(state, runs)
            FROM (
                SELECT k.state, count(*) AS runs FROM run AS k INDEXED BY run_kept
                WHERE k.kept IS NOT NULL AND k.lane = l.id AND k.finished_at IS NOT NULL
                GROUP BY k.state
            )
        )
    )
)
FROM lane AS l;

-- name: parents
-- Those parents of runs that were passed over that do not live any more, a bounded number. Skips from parent to parent
-- on run_kept.
WITH RECURSIVE parents (id) AS (
    SELECT min(parent) FROM run INDEXED BY run_kept WHERE kept IS NOT NULL
    UNION ALL
    SELECT (SELECT min(k.parent) FROM run AS k INDEXED BY run_kept WHERE k.kept IS NOT NULL AND k.parent > p.id)
    FROM parents AS p WHERE p.id IS NOT NULL
)
SELECT json_group_array(id)
FROM (
    SELECT p.id FROM parents AS p
    WHERE p.id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = p.id AND r.finished_at IS NULL)
    LIMIT :limit
);

-- name: let_go
-- Has runs looked at again that were passed over for their parents. Uses run_kept.
UPDATE run SET kept = NULL WHERE kept IS NOT NULL AND parent IN (SELECT value FROM json_each(:parents));

-- name: ended
-- The runs of a lane that ended in a state, in the order in which they ended. Walks run_prunable.
SELECT finish, finished_at, seq FROM run INDEXED BY run_prunable
WHERE lane = :lane AND state = :state AND finished_at IS NOT NULL AND kept IS NULL
ORDER BY finish;

-- name: pass_over
-- Of runs that ended, marks those whose parent lives. Uses primary keys and the unique index of run ids.
UPDATE run SET kept = 1
WHERE seq IN (SELECT value FROM json_each(:runs))
    AND finished_at IS NOT NULL
    AND EXISTS (SELECT 1 FROM run AS p WHERE p.id = run.parent AND p.finished_at IS NULL);

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
