-- Schedules, and the runs that their slots make. All but `all`, `stands` and `live` need the
-- write lock.

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
        'name', name, 'spec', json(spec), 'paused', json(iif(paused, 'true', 'false')), 'next_slot', next_slot,
        'last_slot', last_slot, 'last_run', last_run, 'declared', json(iif(declared, 'true', 'false'))
    )
)
FROM schedule WHERE :name IS NULL OR name = :name;

-- name: pause
-- Pauses a schedule. Uses the primary key.
UPDATE schedule SET paused = 1 WHERE name = :name;

-- name: resume
-- Lets a schedule go on that is paused, from a slot (if that is later than where it stands) or never. Uses the primary
-- key.
UPDATE schedule SET
    paused = 0,
    next_slot = CASE WHEN paused THEN max(next_slot, :next_slot) ELSE next_slot END
WHERE name = :name;

-- name: remove
-- Uses the primary key.
DELETE FROM schedule WHERE name = :name;

-- name: stands
-- Whether a schedule stands at a slot, and is not paused. Uses the primary key.
SELECT 1 FROM schedule AS s WHERE s.name = :name AND s.next_slot = :slot AND s.paused = 0;

-- name: live
-- The runs of a schedule that have not ended, in order. Walks run_schedule.
SELECT json_group_array(id)
FROM (
    SELECT id FROM run INDEXED BY run_schedule WHERE schedule = :name AND finished_at IS NULL ORDER BY seq
);

-- name: mark
-- Ties a run to the schedule that made it, or whose start led to it first. Uses the unique index of run ids.
UPDATE run SET schedule = :name WHERE id = :id AND schedule IS NULL;

-- name: move_on
-- Moves a schedule on. Uses the primary key.
UPDATE schedule SET
    next_slot = :next_slot,
    last_slot = coalesce(:last_slot, last_slot),
    last_run = coalesce(:last_run, last_run)
WHERE name = :name;
