-- Schedules, limits and pauses.

BEGIN;

-- Schedules as they are kept, as JSON: all, or one.
CREATE FUNCTION schedules(_name text) RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT json_agg(json_build_object(
        'name', s.name, 'spec', s.spec::json, 'paused', s.paused, 'next_slot', s.next_slot, 'last_slot', s.last_slot,
        'last_run', s.last_run, 'declared', s.declared
    ) ORDER BY s.name)::text
    FROM schedule AS s WHERE _name IS NULL OR s.name = _name
$$;

-- Schedules of which a slot is due, as JSON, a bounded number. Uses schedule_next.
CREATE FUNCTION due(_now bigint, _limit integer, _skips text[]) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_agg(json_build_object(
        'name', s.name, 'spec', s.spec::json, 'paused', false, 'next_slot', s.next_slot, 'last_slot', s.last_slot,
        'last_run', s.last_run, 'declared', s.declared
    ))::text
    FROM (
        SELECT * FROM schedule AS x WHERE x.next_slot <= _now AND NOT x.paused AND (x.name = ANY (_skips)) IS NOT TRUE
        ORDER BY x.next_slot LIMIT _limit
    ) AS s
$$;

-- Keeps a schedule; with the same timing it stays where it stands. What code declares leaves alone what was added at run
-- time.
CREATE FUNCTION put_schedule(_name text, _spec text, _timing text, _declared boolean, _next_slot bigint) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO schedule AS s (name, spec, timing, declared, next_slot)
    VALUES (_name, _spec, _timing, _declared, _next_slot)
    ON CONFLICT (name) DO UPDATE SET
        spec = excluded.spec, timing = excluded.timing, declared = excluded.declared,
        next_slot = CASE WHEN s.timing = excluded.timing THEN s.next_slot ELSE excluded.next_slot END
    WHERE s.declared OR NOT excluded.declared;
    PERFORM tell_work();
    RETURN schedules(_name);
END $$;

-- Keeps a schedule from firing, or lets one that is paused go on: from a slot, if that is later than where it stands, or
-- never.
CREATE FUNCTION pause_schedule(_name text, _paused boolean, _next_slot bigint) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE schedule AS s SET
        paused = _paused,
        next_slot = CASE
            WHEN _paused OR NOT s.paused THEN s.next_slot
            WHEN _next_slot IS NULL OR s.next_slot IS NULL THEN NULL
            ELSE greatest(s.next_slot, _next_slot)
        END
    WHERE s.name = _name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no schedule % in this store', quote_literal(_name) USING ERRCODE = 'PD006';
    END IF;
    PERFORM tell_work();
    RETURN schedules(_name);
END $$;

CREATE FUNCTION remove_schedule(_name text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM schedule AS s WHERE s.name = _name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no schedule % in this store', quote_literal(_name) USING ERRCODE = 'PD006';
    END IF;
END $$;

-- Makes the runs of slots that nobody has fired yet; returns whether there were any such slots. Fires go one by one: what
-- one of them does depends on the run that the one before it made. Locks the schedule.
CREATE FUNCTION fire_all(_now bigint, _fires jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _fire jsonb;
    _start jsonb;
    _name text;
    _overlap text;
    _earlier bigint[];
    _made text;
    _moved boolean := false;
    _started record;
BEGIN
    FOR _fire IN SELECT e FROM jsonb_array_elements(_fires) AS e LOOP
        _name := _fire ->> 'name';
        _overlap := coalesce(_fire ->> 'overlap', 'allow');
        PERFORM 1 FROM schedule AS s
        WHERE s.name = _name AND s.next_slot = (_fire ->> 'slot')::bigint AND NOT s.paused FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        IF _overlap <> 'allow' THEN
            PERFORM lock_schedule(_name);
        END IF;
        _moved := true;
        _made := NULL;
        FOR _start IN SELECT e FROM jsonb_array_elements(_fire -> 'starts') AS e LOOP
            _earlier := '{}';
            IF _overlap <> 'allow' THEN
                _earlier := ARRAY(
                    SELECT l.seq FROM live AS l JOIN run AS r ON r.seq = l.seq
                    WHERE l.schedule = _name AND r.id <> _start ->> 'id' ORDER BY l.seq
                );
            END IF;
            IF cardinality(_earlier) > 0 THEN
                CONTINUE WHEN _overlap = 'skip';
                IF _overlap = 'cancel' THEN
                    PERFORM stop(_now, _earlier, format('the next run of schedule %s began', _name), true);
                    _earlier := '{}';
                END IF;
            END IF;
            SELECT s.* INTO _started
            FROM start_all(_now, jsonb_build_array(_start), NULL, cardinality(_earlier) > 0, false) AS s;
            _made := _started.ids[1];
            -- The schedule that made it, or whose start led to it first.
            UPDATE run AS r SET schedule = _name, ties = r.ties | 32 WHERE r.id = _made AND r.schedule IS NULL;
            UPDATE live AS l SET schedule = _name, ties = l.ties | 32
            FROM run AS r WHERE r.id = _made AND l.seq = r.seq AND l.schedule IS NULL;
            IF cardinality(_earlier) > 0 AND NOT _started.existed[1] THEN
                INSERT INTO wait (run, key, what, target)
                SELECT r.seq, 'schedule:' || _name, 'schedule', _name FROM run AS r WHERE r.id = _made;
                UPDATE live AS l SET ties = l.ties | 64 FROM run AS r WHERE r.id = _made AND l.seq = r.seq;
            END IF;
        END LOOP;
        UPDATE schedule AS s SET
            next_slot = (_fire ->> 'next_slot')::bigint,
            last_slot = CASE WHEN _made IS NULL THEN s.last_slot ELSE (_fire ->> 'slot')::bigint END,
            last_run = coalesce(_made, s.last_run)
        WHERE s.name = _name;
    END LOOP;
    RETURN _moved;
END $$;

-- What is stored for scopes (all, or one), with the runs that count against it, as JSON. Walks the scopes, and live_owned
-- or live_holder for each.
CREATE FUNCTION limits(_kind text, _name text) RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT json_agg(json_build_array(
        s.kind, s.name, s.running, s.rate_count, s.rate_period, s.rate_burst, s.paused, s.revision, s.who, s.at,
        CASE
            WHEN s.kind = 'group' THEN (
                SELECT count(*) FROM grp AS g JOIN live AS l ON l.grp = g.id AND l.slot = 1 WHERE g.key = s.name
            )
            ELSE (
                SELECT count(*) FROM live AS l JOIN lane AS a ON a.id = l.lane
                WHERE l.state = 'running'
                    AND (s.kind <> 'queue' OR a.queue = s.name)
                    AND (s.kind <> 'workflow' OR a.workflow = s.name)
            )
        END,
        CASE WHEN s.kind = 'group' THEN (SELECT greatest(1, count(*)) FROM grp AS g WHERE g.key = s.name) ELSE 1 END
    ) ORDER BY s.kind, s.name)::text
    FROM scope AS s WHERE _kind IS NULL OR (s.kind = _kind AND s.name = _name)
$$;

-- Changes what is stored for a scope, as a revision if it differs, and returns what holds. Each part is changed only if
-- it is given: `_limits` (a JSON object of what is to hold) or `_paused`. `_declared` says that code asks for it: then it
-- is set only if nothing was ever set. Locks the scope, and before it groups of that name and what is put off in them.
CREATE FUNCTION change_scope(
    _clock bigint, _kind text, _name text, _who text, _limits jsonb, _paused boolean, _declared boolean
) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _was record;
    _new record;
    _debt bigint;
    _number bigint;
    _groups bigint[];
BEGIN
    -- Of two that set what was never set, the second one waits here.
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || chr(31) || _kind || chr(31) || _name, 11));
    IF _kind = 'group' THEN
        -- In the order in which exchanges lock them, these before the scope; of the runs those that may have a timer, which
        -- no exchange takes from us.
        _groups := ARRAY(SELECT g.id FROM grp AS g WHERE g.key = _name ORDER BY g.id FOR NO KEY UPDATE);
        PERFORM 1 FROM live AS l
        WHERE l.grp = ANY (_groups) AND l.slot = 1 AND l.state = 'scheduled' ORDER BY l.seq DESC FOR NO KEY UPDATE;
    END IF;
    SELECT s.* INTO _was FROM scope AS s WHERE s.kind = _kind AND s.name = _name FOR NO KEY UPDATE;
    SELECT
        CASE WHEN _limits IS NULL THEN _was.running ELSE (_limits ->> 'running')::integer END AS running,
        CASE WHEN _limits IS NULL THEN _was.rate_count ELSE (_limits #>> '{rate,count}')::bigint END AS count,
        CASE WHEN _limits IS NULL THEN _was.rate_period ELSE (_limits #>> '{rate,period}')::bigint END AS period,
        CASE WHEN _limits IS NULL THEN _was.rate_burst ELSE (_limits #>> '{rate,burst}')::bigint END AS burst,
        coalesce(_paused, _was.paused, false) AS paused,
        _limits IS NOT NULL OR coalesce(_was.chosen, false) AS chosen
    INTO _new;
    IF (_declared AND coalesce(_was.chosen, false))
        OR (
            (_new.running, _new.count, _new.period, _new.burst, _new.paused, _new.chosen)
            IS NOT DISTINCT FROM
            (_was.running, _was.rate_count, _was.rate_period, _was.rate_burst, coalesce(_was.paused, false),
                coalesce(_was.chosen, false))
        )
    THEN
        RETURN limits(_kind, _name);
    END IF;
    -- What a rate has counted stays counted when the rate changes.
    _debt := CASE
        WHEN _new.count IS NULL THEN 0
        WHEN _was.rate_count IS NULL THEN coalesce(_was.debt, 0)
        ELSE (_was.debt * _new.period + _was.rate_period - 1) / _was.rate_period
    END;
    INSERT INTO revision (kind, name, who, at, old, new, was_paused, paused)
    VALUES (
        _kind, _name, _who, _now, describe(_was.running, _was.rate_count, _was.rate_period, _was.rate_burst),
        describe(_new.running, _new.count, _new.period, _new.burst), coalesce(_was.paused, false), _new.paused
    )
    RETURNING number INTO _number;
    INSERT INTO scope (
        kind, name, running, rate_count, rate_period, rate_burst, debt, debt_at, budget, chosen, paused, revision, who, at
    )
    VALUES (
        _kind, _name, _new.running, _new.count, _new.period, _new.burst, _debt,
        CASE WHEN _new.count IS NULL THEN 0 ELSE coalesce(_was.debt_at, 0) END,
        _new.count IS NOT NULL OR (_new.running IS NOT NULL AND _kind <> 'group'), _new.chosen, _new.paused, _number, _who,
        _now
    )
    ON CONFLICT (kind, name) DO UPDATE SET
        running = excluded.running, rate_count = excluded.rate_count, rate_period = excluded.rate_period,
        rate_burst = excluded.rate_burst, debt = excluded.debt, debt_at = excluded.debt_at, budget = excluded.budget, chosen = excluded.chosen,
        paused = excluded.paused, revision = excluded.revision, who = excluded.who, at = excluded.at;
    IF _kind = 'group' THEN
        WITH changed AS (
            UPDATE grp AS g SET most = coalesce(_new.running, g.asked), paused = _new.paused WHERE g.key = _name
            RETURNING g.id
        )
        SELECT array_agg(id) INTO _groups FROM changed;
        -- What another rate had put off is looked at anew.
        IF (_new.count, _new.period, _new.burst) IS DISTINCT FROM (_was.rate_count, _was.rate_period, _was.rate_burst) THEN
            PERFORM queue_up(_now, ARRAY(
                SELECT l.seq FROM live AS l
                WHERE l.grp = ANY (_groups) AND l.slot = 1 AND l.state = 'scheduled' AND l.held = 'rate'
                FOR NO KEY UPDATE SKIP LOCKED
            ));
        END IF;
        PERFORM admit(_now, _groups, NULL, true);
    END IF;
    PERFORM tell_work();
    RETURN limits(_kind, _name);
END $$;

-- Limits as they are told in revisions, as JSON.
CREATE FUNCTION describe(_running integer, _count bigint, _period bigint, _burst bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_object(
        'running', _running,
        'rate', CASE
            WHEN _count IS NOT NULL THEN json_build_object('count', _count, 'period', _period, 'burst', _burst)
        END
    )::text
$$;

INSERT INTO migration (version, name, oldest) VALUES (9, '0009_schedules', 1);

COMMIT;
