-- Schedules, and the runs that their slots make. All but `all` and `stands` need the write lock.

-- name: put
-- Keeps a schedule; with the same timing it stays where it stands. What code declares leaves alone what was added at
-- run time. Uses the primary key.
INSERT INTO schedule (name, spec, timing, declared, next_slot)
VALUES (:name, :spec, :timing, :declared, :next_slot)
ON CONFLICT (name) DO UPDATE SET
    spec = excluded.spec,
    timing = excluded.timing,
    declared = excluded.declared,
    next_slot = CASE WHEN timing = excluded.timing THEN next_slot ELSE excluded.next_slot END
WHERE declared OR NOT excluded.declared;

-- name: all
-- All schedules, or one, by name. Walks the primary key.
SELECT json_group_array(
    json_object(
        'schedule', json(spec), 'paused', json(iif(paused, 'true', 'false')), 'next_slot', next_slot,
        'last_slot', last_slot, 'last_run', last_run, 'declared', json(iif(declared, 'true', 'false'))
    )
)
FROM schedule WHERE :name IS NULL OR name = :name;

-- name: pause
-- Pauses a schedule, or lets it go on, from a later slot if there is one. Uses the primary key.
UPDATE schedule SET
    paused = :paused,
    next_slot = CASE WHEN :next_slot > next_slot THEN :next_slot ELSE next_slot END
WHERE name = :name;

-- name: remove
-- Uses the primary key.
DELETE FROM schedule WHERE name = :name;

-- name: stands
-- The last run of a schedule that stands at a slot, and whether that has not ended. Uses the primary key, and the unique
-- index of run ids.
SELECT
    s.last_run,
    EXISTS (SELECT 1 FROM run AS r WHERE r.id = s.last_run AND r.finished_at IS NULL)
FROM schedule AS s WHERE s.name = :name AND s.next_slot = :slot AND s.paused = 0;

-- name: move_on
-- Moves a schedule on. Uses the primary key.
UPDATE schedule SET
    next_slot = :next_slot,
    last_slot = coalesce(:last_slot, last_slot),
    last_run = coalesce(:last_run, last_run)
WHERE name = :name;
