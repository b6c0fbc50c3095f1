-- The fix: an index of what is not claimed, and the query of before only when that has nothing.
CREATE INDEX task_ready ON task (id) WHERE lock_token IS NULL;

-- Walks task_ready, then the primary key. Locks the task that it returns.
CREATE FUNCTION dequeue(_now bigint, _lease bigint, _queue text, _worker text) RETURNS SETOF task LANGUAGE plpgsql AS $$
DECLARE
    _id bigint;
BEGIN
    SELECT q.id INTO _id
    FROM task AS q
    LEFT JOIN owned_session AS s ON s.id = q.session AND s.until > _now
    WHERE q.visible_at <= _now
        AND q.lock_token IS NULL
        AND q.queue = _queue
        AND (q.session IS NULL OR s.id IS NULL OR s.worker = _worker)
    ORDER BY q.id LIMIT 1 FOR UPDATE OF q SKIP LOCKED;
    IF NOT FOUND THEN
        SELECT q.id INTO _id
        FROM task AS q
        LEFT JOIN owned_session AS s ON s.id = q.session AND s.until > _now
        WHERE q.visible_at <= _now
            AND (q.lock_token IS NULL OR q.locked_until <= _now)
            AND q.queue = _queue
            AND (q.session IS NULL OR s.id IS NULL OR s.worker = _worker)
        ORDER BY q.id LIMIT 1 FOR UPDATE OF q SKIP LOCKED;
    END IF;
    RETURN QUERY UPDATE task AS t SET
        lock_token = gen_random_uuid()::text, locked_until = _now + _lease, attempts = t.attempts + 1
    WHERE t.id = _id RETURNING t.*;
END $$;
