-- Incarnations of workers: how they begin and end, their leases, and what becomes of the runs of one that died.

BEGIN;

CREATE FUNCTION register(
    _clock bigint, _name text, _host text, _pid bigint, _queues text[], _workflows text[], _versions text[],
    _sessions integer, _session_idle bigint, _concurrency integer, _lease bigint
) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _worker bigint;
BEGIN
    INSERT INTO worker (
        name, host, pid, queues, workflows, versions, sessions, session_idle, concurrency, started_at
    )
    VALUES (_name, _host, _pid, _queues, _workflows, _versions, _sessions, _session_idle, _concurrency, _now)
    RETURNING id INTO _worker;
    INSERT INTO lease (worker, until) VALUES (_worker, _now + _lease);
    RETURN _worker;
END $$;

-- Extends a lease from now on; false when the incarnation is gone. Uses the primary key.
CREATE FUNCTION renew(_clock bigint, _worker bigint, _lease bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE lease AS e SET until = coalesce(_clock, clock_ms()) + _lease WHERE e.worker = _worker;
    RETURN FOUND;
END $$;

-- The runs of incarnations whose lease has ended, or of those of a name, as JSON: what is needed to judge them; what time
-- it is; and, without a name, when the first lease ends. Walks the leases, which are few, and live_owned.
CREATE FUNCTION suspects(
    _clock bigint, _name text, OUT workers bigint[], OUT runs text, OUT now bigint, OUT next_at bigint
)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    now := coalesce(_clock, clock_ms());
    IF _name IS NULL THEN
        SELECT array_agg(e.worker) FILTER (WHERE e.until <= now), min(e.until) INTO workers, next_at FROM lease AS e;
    ELSE
        workers := ARRAY(SELECT w.id FROM worker AS w WHERE w.name = _name);
    END IF;
    IF cardinality(workers) > 0 THEN
        SELECT json_agg(json_build_array(
            l.worker, l.seq, l.token, l.crashes, l.max_crashes, l.cancelling IS NOT NULL
        ))::text
        INTO runs
        FROM live AS l WHERE l.worker = ANY (workers) AND l.state = 'running';
    END IF;
END $$;

-- Takes runs from dead owners, as was judged: queued, backing off, or ended; and forgets the owners that own nothing more
-- then. Locks the owners first: waits for those that are `_named`, and leaves others that are at an exchange for the next
-- time; of these, one that has renewed its lease meanwhile keeps what it has. Returns how many runs were taken.
CREATE FUNCTION take_back(
    _clock bigint, _named boolean, _workers bigint[], _runs bigint[], _tokens bigint[], _states text[],
    _crashes integer[], _wake_ats bigint[], _errors text[], _cause text, _overdue text[]
) RETURNS integer LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _dead bigint[];
    _part CONSTANT integer := 100;
    _to integer;
    _moved record;
    _taken integer := 0;
    _stopping bigint[] := '{}';
    _groups bigint[] := '{}';
    _sessions bigint[] := '{}';
BEGIN
    IF _named THEN
        -- An exchange of the dead one may be under way on the server still: what it claims is to be taken back as well.
        _dead := ARRAY(SELECT w.id FROM worker AS w WHERE w.id = ANY (_workers) ORDER BY w.id FOR UPDATE);
    ELSE
        _dead := ARRAY(
            SELECT w.id FROM worker AS w
            WHERE w.id = ANY (_workers) AND EXISTS (SELECT 1 FROM lease AS e WHERE e.worker = w.id AND e.until <= _now)
            ORDER BY w.id FOR UPDATE SKIP LOCKED
        );
    END IF;
    -- A renewal that came in between is seen only now.
    IF NOT _named THEN
        _dead := ARRAY(SELECT e.worker FROM lease AS e WHERE e.worker = ANY (_dead) AND e.until <= _now FOR UPDATE);
    END IF;
    IF cardinality(_dead) = 0 THEN
        RETURN 0;
    END IF;
    -- A part after the other: the server joins what it is given by walking it for each run.
    FOR _from IN 1 .. cardinality(_runs) BY _part LOOP
        _to := _from + _part - 1;
        WITH moved AS (
            UPDATE live AS l SET
                state = v.state,
                crashes = v.crashes,
                attempt = l.attempt + (v.state <> 'failed')::integer,
                wake_at = v.wake_at,
                cut_off = true,
                worker = NULL,
                token = NULL,
                held = CASE WHEN v.state = 'queued' AND l.session IS NOT NULL THEN 'session' END,
                seat = CASE WHEN l.session IS NULL OR v.state <> 'queued' THEN NULL ELSE 2 END,
                slot = CASE WHEN l.slot > 0 AND v.state = 'scheduled' AND NOT l.keep THEN 0 ELSE l.slot END
            FROM unnest(
                _runs[_from:_to], _tokens[_from:_to], _states[_from:_to], _crashes[_from:_to], _wake_ats[_from:_to],
                _errors[_from:_to]
            ) AS v (seq, token, state, crashes, wake_at, error)
            WHERE l.seq = v.seq
                AND l.seq = ANY (_runs[_from:_to])
                AND l.token = v.token
                AND is_running(l.state)
                AND l.worker = ANY (_dead)
            RETURNING l.seq, l.grp, l.session, l.cancelling, v.state, v.error
        )
        SELECT
            count(*)::integer AS runs,
            array_agg(seq) FILTER (WHERE cancelling IS NOT NULL) AS stopping,
            array_agg(grp) FILTER (WHERE grp IS NOT NULL) AS groups,
            array_agg(session) FILTER (WHERE session IS NOT NULL) AS sessions,
            array_agg(seq ORDER BY seq) FILTER (WHERE state = 'failed') AS failed,
            array_agg(error ORDER BY seq) FILTER (WHERE state = 'failed') AS errors
        INTO _moved
        FROM moved;
        _taken := _taken + _moved.runs;
        _stopping := _stopping || _moved.stopping;
        _groups := _groups || _moved.groups;
        _sessions := _sessions || _moved.sessions;
        IF _moved.failed IS NOT NULL THEN
            PERFORM finish(_now, _moved.failed, 'failed', _moved.errors, _cause);
        END IF;
    END LOOP;
    _dead := ARRAY(
        SELECT e FROM unnest(_dead) AS e
        WHERE NOT EXISTS (SELECT 1 FROM live AS l WHERE l.worker = e AND l.state = 'running')
    );
    PERFORM forget(_now, _dead);
    PERFORM nextval('rewind');
    PERFORM admit(_now, _groups);
    PERFORM reseat(_now, _sessions);
    FOR _from IN 1 .. cardinality(_stopping) BY _part LOOP
        PERFORM end_held(_now, _stopping[_from:_from + _part - 1], NULL, _overdue);
    END LOOP;
    PERFORM tell_status();
    PERFORM tell_work();
    RETURN _taken;
END $$;

-- Forgets incarnations, and ends what they own of sessions: the runs of these are for others then.
CREATE FUNCTION forget(_now bigint, _workers bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _sessions bigint[];
BEGIN
    WITH left_alone AS (
        UPDATE session AS s SET owner = NULL WHERE s.owner = ANY (_workers) RETURNING s.id
    )
    SELECT array_agg(id) INTO _sessions FROM left_alone;
    DELETE FROM lease AS e WHERE e.worker = ANY (_workers);
    DELETE FROM worker AS w WHERE w.id = ANY (_workers);
    PERFORM reseat(_now, _sessions);
END $$;

-- Ends the ownership of sessions that were idle long enough, a bounded number; returns whether there were any. Uses
-- session_idle.
CREATE FUNCTION let_go(_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _sessions bigint[];
BEGIN
    WITH left_alone AS (
        UPDATE session AS s SET owner = NULL
        WHERE s.id = ANY (ARRAY(
            SELECT x.id FROM session AS x WHERE x.idle_until <= _now ORDER BY x.idle_until LIMIT 500
            FOR NO KEY UPDATE SKIP LOCKED
        ))
        RETURNING s.id
    )
    SELECT array_agg(id) INTO _sessions FROM left_alone;
    PERFORM reseat(_now, _sessions);
    RETURN _sessions IS NOT NULL;
END $$;

-- Ends what a worker owns of sessions of which it runs nothing; returns whether there were any. Uses session_owned and
-- live_seat.
CREATE FUNCTION give_up(_now bigint, _worker bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _sessions bigint[];
BEGIN
    WITH left_alone AS (
        UPDATE session AS s SET owner = NULL
        WHERE s.owner = _worker
            AND NOT EXISTS (SELECT 1 FROM live AS l WHERE l.session = s.id AND l.seat = 3)
        RETURNING s.id
    )
    SELECT array_agg(id) INTO _sessions FROM left_alone;
    IF _sessions IS NOT NULL THEN
        PERFORM reseat(_now, _sessions);
        PERFORM tell_work();
    END IF;
    RETURN _sessions IS NOT NULL;
END $$;

-- Ends an incarnation in good order: what it owns is queued again and not counted.
CREATE FUNCTION retire(_clock bigint, _worker bigint, _overdue text[]) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _moved record;
BEGIN
    PERFORM 1 FROM worker AS w WHERE w.id = _worker FOR UPDATE;
    WITH moved AS (
        UPDATE live AS l SET
            state = 'queued', worker = NULL, token = NULL,
            settled = coalesce(l.settled, 0), -- No token: it has begun, and may have checkpoints (see is_particular).
            held = CASE WHEN l.session IS NOT NULL THEN 'session' END,
            seat = CASE WHEN l.session IS NOT NULL THEN 2 END
        WHERE l.worker = _worker AND l.state = 'running'
        RETURNING l.seq, l.grp, l.session, l.cancelling
    )
    SELECT
        array_agg(seq) FILTER (WHERE cancelling IS NOT NULL) AS stopping,
        array_agg(grp) FILTER (WHERE grp IS NOT NULL) AS groups,
        array_agg(session) FILTER (WHERE session IS NOT NULL) AS sessions
    INTO _moved
    FROM moved;
    PERFORM forget(_now, ARRAY[_worker]);
    PERFORM nextval('rewind');
    PERFORM admit(_now, _moved.groups);
    PERFORM reseat(_now, _moved.sessions);
    IF _moved.stopping IS NOT NULL THEN
        PERFORM end_held(_now, _moved.stopping, NULL, _overdue);
    END IF;
    PERFORM tell_status();
    PERFORM tell_work();
END $$;

INSERT INTO migration (version, name, oldest) VALUES (8, '0008_workers', 1);

COMMIT;
