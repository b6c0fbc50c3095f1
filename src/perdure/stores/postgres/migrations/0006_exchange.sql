-- One call per wake of a worker: checkpoints, settles, timers, claims, and the reply. An exchange that writes holds the
-- row of its worker until it commits, so that what the worker owns is not taken from it meanwhile; whoever takes runs
-- from a worker locks that row first.

BEGIN;

-- What is named is looked up in `live` one by one, by a subquery that is kept apart (OFFSET 0, or FOR UPDATE), or by `= ANY`:
-- after a VACUUM while somebody's snapshot holds what has gone, the server believes that there are no rows on its many pages,
-- and that to walk them costs nothing. Where the two are joined, `= ANY` compares each with each: no more than 100 at a time.

-- Whether a run that is looked up is running. Said in this way, so that live_owned is not taken for it, and walked from
-- end to end.
CREATE FUNCTION is_running(_state text) RETURNS boolean LANGUAGE sql IMMUTABLE AS
$$ SELECT _state NOT IN ('queued', 'scheduled', 'waiting') $$;

-- Of claims that are named, those that own their run no more, unless this exchange settles what was settled by it before.
CREATE FUNCTION refused(_refs bigint[], _tokens bigint[], _settling bigint[]) RETURNS bigint[] LANGUAGE sql STABLE AS $$
    SELECT array_agg(DISTINCT e.token)
    FROM unnest(_refs, _tokens) AS e (ref, token)
    LEFT JOIN LATERAL (SELECT * FROM live AS l WHERE l.seq = e.ref OFFSET 0) AS l ON true
    LEFT JOIN ended AS d ON d.seq = e.ref
    WHERE e.token IS NOT NULL
        AND (is_running(l.state) AND l.token = e.token) IS NOT TRUE
        AND (coalesce(l.settled, d.settled) = e.token AND e.token = ANY (_settling)) IS NOT TRUE
$$;

-- Settles that do not end their runs. A run that is being cancelled is released instead, or ended (see end_held). Returns whether runs became
-- ready, and how many were settled. Locks those for whose end runs wait, as they would be locked to end them, so that
-- an end that is under way is not missed. Uses primary keys, signal_named and the unique index of run ids.
CREATE FUNCTION move_on(
    _now bigint, _refs bigint[], _tokens bigint[], _tos text[], _bodies text[], _delays bigint[], _ats bigint[],
    _waits jsonb, _leaving bigint, _overdue text[], OUT moved integer, OUT ready boolean
) LANGUAGE plpgsql AS $$
DECLARE
    _moved record;
    _retried bigint[];
    _continued bigint[];
    _parked bigint[];
    _stopping bigint[];
    _groups bigint[];
    _sessions bigint[];
    _queued boolean := false;
    _to integer;
BEGIN
    moved := 0;
    -- First the locks, and then a look of its own: somebody may be cancelling one of them just now.
    PERFORM 1 FROM live AS l WHERE l.seq = ANY (_refs) ORDER BY l.seq DESC FOR NO KEY UPDATE;
    FOR _from IN 1 .. cardinality(_refs) BY 100 LOOP
        _to := _from + 99;
        WITH told AS (
            SELECT
                e.*,
                CASE WHEN l.cancelling IS NOT NULL THEN 'release' ELSE e.asked END AS to,
                l.slot AS slot_before, l.started_at AS begun
            FROM unnest(
                _refs[_from:_to], _tokens[_from:_to], _tos[_from:_to], _bodies[_from:_to], _delays[_from:_to], _ats[_from:_to]
            ) AS e (ref, token, asked, body, delay, at)
            JOIN live AS l
                ON l.seq = e.ref AND l.seq = ANY (_refs[_from:_to]) AND l.token = e.token AND is_running(l.state)
        ),
        changed AS (
            UPDATE live AS l SET
                state = CASE
                    WHEN t.to = 'park' THEN 'waiting' WHEN t.to = 'retry' AND t.delay > 0 THEN 'scheduled' ELSE 'queued'
                END,
                wake_at = CASE WHEN t.to = 'park' THEN t.at WHEN t.to = 'retry' AND t.delay > 0 THEN _now + t.delay END,
                attempt = CASE t.to WHEN 'retry' THEN l.attempt + 1 WHEN 'continue' THEN 1 ELSE l.attempt END,
                crashes = CASE WHEN t.to = 'continue' THEN 0 ELSE l.crashes END,
                cut_off = l.cut_off AND t.to = 'release', worker = NULL, settled = t.token,
                error = CASE WHEN t.to = 'retry' THEN t.body WHEN t.to = 'release' THEN l.error END,
                ties = CASE WHEN t.to = 'park' THEN l.ties | 64 WHEN t.to = 'release' THEN l.ties ELSE l.ties & ~64 END,
                slot = CASE
                    WHEN l.slot > 0 AND NOT l.keep AND (t.to = 'park' OR (t.to = 'retry' AND t.delay > 0)) THEN 0 ELSE l.slot
                END,
                held = CASE
                    WHEN t.to = 'park' OR (t.to = 'retry' AND t.delay > 0) THEN NULL WHEN l.session IS NOT NULL THEN 'session'
                END,
                seat = CASE
                    WHEN l.session IS NULL OR t.to = 'park' OR (t.to = 'retry' AND t.delay > 0) THEN NULL ELSE 2
                END
            FROM told AS t
            WHERE l.seq = t.ref AND l.seq = ANY (_refs[_from:_to])
            RETURNING l.seq, t.to, l.state, l.grp, l.session, t.begun, l.cancelling
        )
        SELECT
            count(*)::integer AS runs,
            array_agg(seq) FILTER (WHERE changed.to = 'park') AS parked,
            array_agg(seq) FILTER (WHERE changed.to = 'retry') AS retried,
            array_agg(seq) FILTER (WHERE changed.to = 'continue') AS continued,
            array_agg(seq) FILTER (WHERE cancelling IS NOT NULL) AS stopping,
            array_agg(grp) FILTER (WHERE grp IS NOT NULL) AS groups,
            array_agg(session) FILTER (WHERE session IS NOT NULL) AS sessions,
            bool_or(state = 'queued') AS queued
        INTO _moved
        FROM changed;
        moved := moved + _moved.runs;
        _queued := _queued OR coalesce(_moved.queued, false);
        _parked := _parked || _moved.parked;
        _retried := _retried || _moved.retried;
        _continued := _continued || _moved.continued;
        _stopping := _stopping || _moved.stopping;
        _groups := _groups || _moved.groups;
        _sessions := _sessions || _moved.sessions;
        IF _moved.continued IS NOT NULL THEN
            UPDATE run AS r SET first = coalesce(r.first, r.input), input = e.body
            FROM unnest(_refs[_from:_to], _bodies[_from:_to]) AS e (ref, body)
            WHERE r.seq = e.ref AND r.seq = ANY (_moved.continued) AND e.body IS NOT NULL;
        END IF;
    END LOOP;
    ready := _queued OR _groups IS NOT NULL OR _sessions IS NOT NULL;
    IF _queued THEN
        PERFORM nextval('rewind');
    END IF;
    DELETE FROM wait AS w WHERE w.run = ANY (_parked || _retried || _continued);
    IF _parked IS NOT NULL THEN
        PERFORM 1 FROM live AS l
        WHERE l.seq IN (
            SELECT r.seq FROM jsonb_to_recordset(_waits) AS w (run bigint, what text, target text) JOIN run AS r ON r.id = w.target
            WHERE w.what = 'run' AND w.run = ANY (_parked)
        )
        ORDER BY l.seq DESC FOR KEY SHARE;
        INSERT INTO wait (run, key, what, target, at)
        SELECT w.run, w.key, w.what, coalesce(w.target, ''), w.at
        FROM jsonb_to_recordset(_waits) AS w (run bigint, key text, what text, target text, at bigint)
        WHERE w.run = ANY (_parked)
        ON CONFLICT (run, key) DO UPDATE SET what = excluded.what, target = excluded.target, at = excluded.at;
        ready := queue_up(_now, ARRAY(
            SELECT DISTINCT w.run FROM wait AS w
            WHERE w.run = ANY (_parked)
                AND (
                    w.at <= _now
                    OR (
                        w.what = 'signal' AND EXISTS (
                            SELECT 1 FROM signal AS s WHERE s.run = w.run AND s.name = w.target AND s.body IS NOT NULL
                        )
                    )
                    OR (
                        w.what = 'run' AND (
                            SELECT t.seq FROM live AS t WHERE t.seq = (SELECT r.seq FROM run AS r WHERE r.id = w.target)
                        ) IS NULL
                    )
                )
        )) > 0 OR ready;
    END IF;
    IF _retried IS NOT NULL THEN
        PERFORM clear_errors(_retried);
    END IF;
    IF _continued IS NOT NULL THEN
        DELETE FROM checkpoint AS c WHERE c.run = ANY (_continued);
        DELETE FROM signal AS s WHERE s.run = ANY (_continued) AND s.body IS NULL AND s.taken IS NULL;
        UPDATE signal AS s SET taken = NULL, taken_by = NULL WHERE s.run = ANY (_continued) AND s.taken IS NOT NULL;
    END IF;
    IF _groups IS NOT NULL THEN
        PERFORM admit(_now, _groups);
    END IF;
    IF _sessions IS NOT NULL THEN
        PERFORM reseat(_now, _sessions);
    END IF;
    IF _stopping IS NOT NULL THEN
        PERFORM end_held(_now, _stopping, _leaving, _overdue);
    END IF;
END $$;

-- Clears the checkpoints of steps that failed; signals that they had consumed wait again. Uses primary keys.
CREATE FUNCTION clear_errors(_runs bigint[]) RETURNS void LANGUAGE sql AS $$
    DELETE FROM checkpoint AS c WHERE c.run = ANY (_runs) AND c.outcome = 'error';
    UPDATE signal AS s SET body = s.taken, taken = NULL, taken_by = NULL
    WHERE s.run = ANY (_runs)
        AND s.taken IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM checkpoint AS c WHERE c.run = s.run AND c.key = s.taken_by)
$$;

-- Whether watched waits are true: the first signal of a name, the run that ended, the time that has come; and whether more
-- are than go into a page of 512 KiB.
CREATE FUNCTION seen(_now bigint, _watches jsonb, OUT page text, OUT more boolean) LANGUAGE sql STABLE AS $$
    SELECT
        json_agg(json_build_object(
            'ref', f.ref, 'token', f.token, 'key', f.key,
            'signal', CASE
                WHEN f.position IS NOT NULL
                THEN json_build_object('position', f.position, 'name', f.target, 'body', f.body)
            END,
            'ended', CASE
                WHEN f.ended IS NOT NULL THEN json_build_object('id', f.target, 'state', f.state, 'body', f.body)
            END,
            'missing', f.missing
        )) FILTER (WHERE f.fits)::text,
        coalesce(bool_or(NOT f.fits), false)
    FROM (
        SELECT
            w.ref, w.token, w.key, w.target, s.position, d.seq AS ended, d.state, coalesce(s.body, d.body) AS body,
            w.what = 'run' AND t.seq IS NULL AS missing,
            row_number() OVER page = 1 OR coalesce(sum(octet_length(coalesce(s.body, d.body))) OVER page, 0) <= 524288 AS fits
        FROM ROWS FROM (
            jsonb_to_recordset(_watches) AS (ref bigint, token bigint, key text, what text, target text, at bigint)
        ) WITH ORDINALITY AS w (ref, token, key, what, target, at, place)
        -- Looked up for each one, whatever the server knows of the table.
        CROSS JOIN LATERAL (
            SELECT 1 FROM live AS l WHERE l.seq = w.ref AND l.token = w.token AND is_running(l.state) OFFSET 0
        ) AS l
        LEFT JOIN LATERAL (
            SELECT m.position, m.body FROM signal AS m
            WHERE w.what = 'signal' AND m.run = w.ref AND m.name = w.target AND m.body IS NOT NULL
            ORDER BY m.position LIMIT 1
        ) AS s ON true
        LEFT JOIN run AS t ON w.what = 'run' AND t.id = w.target
        LEFT JOIN ended AS d ON d.seq = t.seq
        WHERE s.position IS NOT NULL OR d.seq IS NOT NULL OR (w.what = 'run' AND t.seq IS NULL) OR w.at <= _now
        WINDOW page AS (ORDER BY w.place ROWS UNBOUNDED PRECEDING)
    ) AS f
$$;

-- Lanes with what they are called, as JSON.
CREATE FUNCTION lanes_told(_lanes integer[]) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_array(l.id, l.queue, l.workflow, l.version)), '[]')::text
    FROM lane AS l WHERE l.id = ANY (_lanes)
$$;

-- Makes the runs that checkpoints start. An id or unique key that somebody's open transaction has is waited for a moment
-- only: what else the worker has to say must not wait for it. Then they are made one by one, with less patience, so that
-- this holds up no others; NULL for those that did not come, and for what else their makers start.
CREATE FUNCTION start_children(
    _now bigint, _starts jsonb, _makers bigint[],
    OUT ids text[], OUT existed boolean[], OUT same boolean[]
) LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    _late bigint[] := '{}';
    _one record;
BEGIN
    SELECT s.ids, s.existed, s.same INTO ids, existed, same FROM start_all(_now, _starts, _makers, false, false) AS s;
EXCEPTION WHEN lock_not_available THEN
    ids := '{}';
    existed := '{}';
    same := '{}';
    FOR i IN 1..cardinality(_makers) LOOP
        SELECT NULL::text AS id, NULL::boolean AS existed, NULL::boolean AS same INTO _one;
        IF _makers[i] <> ALL (_late) AND cardinality(_makers) > 1 THEN
            SELECT s.* INTO _one FROM start_child(_now, jsonb_build_array(_starts -> (i - 1)), _makers[i:i]) AS s;
        END IF;
        IF _one.id IS NULL THEN
            _late := _late || _makers[i];
        END IF;
        ids := array_append(ids, _one.id);
        existed := array_append(existed, _one.existed);
        same := array_append(same, _one.same);
    END LOOP;
END $$;

-- One of them; NULL when what it waits for did not come.
CREATE FUNCTION start_child(
    _now bigint, _start jsonb, _maker bigint[], OUT id text, OUT existed boolean, OUT same boolean
) LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
BEGIN
    SELECT s.ids[1], s.existed[1], s.same[1] INTO id, existed, same
    FROM start_all(_now, _start, _maker, false, false) AS s;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END $$;

-- The same for schedules: a slot that could not be fired stays due, and the others are.
CREATE FUNCTION fire(_now bigint, _fires jsonb) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    _fired boolean := false;
BEGIN
    RETURN fire_all(_now, _fires);
EXCEPTION WHEN lock_not_available THEN
    IF jsonb_array_length(_fires) > 1 THEN
        FOR i IN 0..jsonb_array_length(_fires) - 1 LOOP
            _fired := fire_one(_now, jsonb_build_array(_fires -> i)) OR _fired;
        END LOOP;
    END IF;
    RETURN _fired;
END $$;

CREATE FUNCTION fire_one(_now bigint, _fire jsonb) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
BEGIN
    RETURN fire_all(_now, _fire);
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Hands runs back for a second, without counting: what they start could not be made. Uses the primary key.
CREATE FUNCTION come_again(_now bigint, _runs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _groups bigint[];
    _sessions bigint[];
BEGIN
    WITH moved AS (
        UPDATE live AS l SET
            state = CASE WHEN l.cancelling IS NULL THEN 'scheduled' ELSE 'queued' END,
            wake_at = CASE WHEN l.cancelling IS NULL THEN _now + 1000 END,
            worker = NULL, token = NULL,
            settled = coalesce(l.settled, 0), -- No token: it has begun, and may have checkpoints (see is_particular).
            held = CASE WHEN l.cancelling IS NULL THEN 'start' WHEN l.session IS NOT NULL THEN 'session' END,
            seat = CASE WHEN l.cancelling IS NOT NULL AND l.session IS NOT NULL THEN 2 END,
            slot = CASE WHEN l.slot > 0 AND NOT l.keep AND l.cancelling IS NULL THEN 0 ELSE l.slot END
        WHERE l.seq = ANY (_runs) AND l.state = 'running'
        RETURNING l.grp, l.session
    )
    SELECT array_agg(grp) FILTER (WHERE grp IS NOT NULL), array_agg(session) FILTER (WHERE session IS NOT NULL)
    INTO _groups, _sessions
    FROM moved;
    PERFORM admit(_now, _groups);
    PERFORM reseat(_now, _sessions);
END $$;

-- All that a worker has to say when it wakes, and all that it gets, in one transaction. The first of its statements looks
-- at whatever may be due, by the first entry of each index: live_timer, live_deadline, live_ready, those of sessions and
-- schedules. Most exchanges do no more than that besides what they say and claim. What is named is found by primary key.
CREATE FUNCTION exchange(
    _clock bigint, _worker bigint, _serial bigint, _repeated boolean, _slots integer, _lanes integer[],
    _topology bigint, _after text, _bytes bigint, _overdue text[],
    _save_refs bigint[], _save_tokens bigint[], _save_keys text[], _save_kinds text[], _save_outcomes text[],
    _save_bodies text[], _save_attempts integer[], _save_digests text[], _save_ats bigint[], _save_begun bigint[],
    _save_consumes bigint[], _save_starts jsonb, _save_starting integer[],
    _end_refs bigint[], _end_tokens bigint[], _end_states text[], _end_bodies text[], _end_causes text[],
    _move_refs bigint[], _move_tokens bigint[], _move_tos text[], _move_bodies text[], _move_delays bigint[],
    _move_ats bigint[], _move_waits jsonb,
    _tell_refs bigint[], _tell_tokens bigint[], _tells text[],
    _watch_refs bigint[], _watch_tokens bigint[], _watches jsonb,
    _fires jsonb, _owned_refs bigint[], _owned_tokens bigint[], _skips text[], _draining boolean,
    _rewind bigint, _floor_lanes integer[], _floor_priorities integer[], _floor_places bigint[],
    OUT now bigint, OUT gone boolean, OUT refused bigint[], OUT cancelled text, OUT seen text, OUT next_at bigint,
    OUT more boolean, OUT due text, OUT existed text, OUT lanes text, OUT topology bigint,
    OUT tokens bigint[], OUT refs bigint[], OUT ids text[], OUT lane_ids integer[], OUT inputs text[],
    OUT attempts integer[], OUT created_ats bigint[], OUT particulars text[], OUT rewind bigint, OUT floors text,
    OUT floored boolean
) LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _silent boolean := _save_refs IS NULL AND _end_refs IS NULL AND _move_refs IS NULL AND _tell_refs IS NULL
        AND _fires IS NULL AND NOT _repeated;
    -- Whether it changes nothing but the runs that it names, and what it claims: all else is as the look at the beginning
    -- found it. What others have changed since they call for.
    _plain boolean := _move_refs IS NULL AND _fires IS NULL AND _save_starts IS NULL AND NOT _repeated;
    _head record;
    _due boolean := false;
    _owners bigint[] := ARRAY[0];
    _ready boolean := false;
    _odd boolean := false;
    _first bigint := (_worker << 40) + (_serial << 8);
    _token bigint := _first;
    _open integer[];
    _kept record;
    _claims claims;
    _already integer := 0;
    _strict boolean := false;
    _more boolean := false;
    _sooner boolean := false;
    _count integer;
    _started record;
    _put_back bigint[];
    _outlook record;
    _walked bigint;
    _left record;
    _held boolean := false;
    _more_seen boolean := false;
BEGIN
    now := coalesce(_clock, clock_ms());
    gone := false;
    more := false;
    IF NOT _silent THEN
        PERFORM 1 FROM worker AS w WHERE w.id = _worker FOR NO KEY UPDATE;
    END IF;
    SELECT
        -- An exchange that starts runs may make the first session there is.
        CASE WHEN NOT _plain OR f.any_session THEN w.sessions ELSE 0 END AS sessions,
        t.last_value + t.is_called::integer AS topology,
        b.last_value + b.is_called::integer AS rewind,
        EXISTS (SELECT 1 FROM scope AS s WHERE s.budget) AS limited,
        EXISTS (SELECT 1 FROM scope AS s WHERE s.paused AND s.kind <> 'group') AS paused,
        (SELECT l.wake_at FROM live AS l WHERE l.wake_at IS NOT NULL ORDER BY l.wake_at LIMIT 1) AS timer,
        (
            SELECT l.deadline FROM live AS l WHERE l.deadline IS NOT NULL AND l.cancelling IS NULL
            ORDER BY l.deadline LIMIT 1
        ) AS deadline,
        (SELECT s.idle_until FROM session AS s WHERE s.idle_until IS NOT NULL ORDER BY s.idle_until LIMIT 1) AS idle,
        EXISTS (SELECT 1 FROM recheck) AS recheck,
        (
            SELECT s.next_slot FROM schedule AS s WHERE s.next_slot IS NOT NULL AND NOT s.paused
            ORDER BY s.next_slot LIMIT 1
        ) AS slot,
        EXISTS (
            SELECT 1 FROM live AS l WHERE l.worker = _worker AND l.state = 'running' AND l.cancelling IS NOT NULL
        ) AS cancelling,
        _floor_lanes IS NOT NULL OR EXISTS (
            SELECT 1 FROM unnest(_lanes) AS a (lane)
            CROSS JOIN LATERAL (
                SELECT 1 FROM live AS l
                WHERE l.lane = a.lane AND l.owner = 0 AND l.state = 'queued' AND l.held IS NULL
                ORDER BY l.priority DESC, l.place DESC LIMIT 1
            ) AS q
        ) OR (f.any_session AND w.sessions > 0 AND any_ready(_lanes, ARRAY[_worker, -1])) AS ready,
        f.for_ends,
        f.for_status
    INTO _head
    FROM worker AS w CROSS JOIN topology AS t CROSS JOIN rewind AS b
    CROSS JOIN (
        SELECT
            bool_or(l.topic = 'ended') AS for_ends, bool_or(l.topic = 'status') AS for_status,
            EXISTS (SELECT 1 FROM session) AS any_session
        FROM listener AS l WHERE l.until > clock_ms()
    ) AS f
    WHERE w.id = _worker;
    IF NOT FOUND THEN
        gone := true;
        refused := ARRAY(SELECT DISTINCT unnest(
            _save_tokens || _end_tokens || _move_tokens || _tell_tokens || _watch_tokens || _owned_tokens
        ));
        RETURN;
    END IF;
    IF _head.sessions > 0 THEN
        _owners := ARRAY[0, _worker, -1];
    END IF;
    IF _head.slot <= now THEN
        _due := true;
        SELECT (
            SELECT s.next_slot FROM schedule AS s WHERE s.next_slot > now AND NOT s.paused ORDER BY s.next_slot LIMIT 1
        ) INTO _head.slot;
    END IF;
    _more := _head.ready;
    topology := _head.topology;
    IF topology IS DISTINCT FROM _topology THEN
        IF NOT lanes_settled() THEN
            topology := NULL;  -- One that cannot be seen yet has moved it on: it is looked at once more.
        END IF;
        _lanes := served(_worker);
        lanes := lanes_told(_lanes);
    END IF;
    _open := CASE WHEN _head.paused THEN unpaused(_lanes) ELSE _lanes END;
    IF lanes IS NOT NULL OR _head.paused THEN
        _more := _floor_lanes IS NOT NULL OR any_ready(_open, _owners);
    END IF;
    IF _silent AND (
        coalesce(_head.timer <= now, false) OR coalesce(_head.deadline <= now, false)
        OR coalesce(_head.idle <= now, false) OR _head.recheck OR (_draining AND _head.sessions > 0)
        OR (_slots > 0 AND _more)
    ) THEN
        _silent := false;
        PERFORM 1 FROM worker AS w WHERE w.id = _worker FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            gone := true;
            refused := ARRAY(SELECT DISTINCT unnest(_watch_tokens || _owned_tokens));
            RETURN;
        END IF;
    END IF;

    IF _save_refs IS NOT NULL THEN
        IF _save_starts IS NOT NULL THEN
            -- Children whose parents are owned still; one whose id is another run's has its checkpoint dropped.
            SELECT
                jsonb_agg(e.start ORDER BY e.number) AS starts, array_agg(_save_refs[e.place] ORDER BY e.number) AS makers,
                array_agg(_save_tokens[e.place] ORDER BY e.number) AS tokens, array_agg(e.place ORDER BY e.number) AS places
            INTO _kept
            FROM (
                SELECT s.start, s.place, s.number
                FROM ROWS FROM (jsonb_array_elements(_save_starts), unnest(_save_starting)) WITH ORDINALITY
                    AS s (start, place, number)
                CROSS JOIN LATERAL (
                    SELECT 1 FROM live AS l
                    WHERE l.seq = _save_refs[s.place] AND l.token = _save_tokens[s.place] AND is_running(l.state) OFFSET 0
                ) AS l
            ) AS e;
            IF _kept.starts IS NOT NULL THEN
                SELECT s.* INTO _started FROM start_children(now, _kept.starts, _kept.makers) AS s;
                _ready := array_position(_started.existed, false) IS NOT NULL;
                FOR i IN 1..cardinality(_started.ids) LOOP
                    IF _started.ids[i] IS NULL THEN
                        _put_back := _put_back || _kept.makers[i];
                        _save_refs[_kept.places[i]] := NULL;
                    ELSIF NOT _started.same[i] THEN
                        _save_refs[_kept.places[i]] := NULL;
                        _save_tokens[_kept.places[i]] := NULL;
                    ELSIF _started.ids[i] <> _kept.starts -> (i - 1) ->> 'id' THEN
                        _save_bodies[_kept.places[i]] := to_json(_started.ids[i])::text;
                    END IF;
                END LOOP;
                SELECT json_agg(json_build_object(
                    'token', e.token, 'key', _save_keys[e.place], 'id', e.id, 'same', e.same
                ))::text
                INTO existed
                FROM unnest(_kept.places, _kept.tokens, _started.ids, _started.existed, _started.same)
                    AS e (place, token, id, existed, same)
                WHERE e.existed;
            END IF;
        END IF;
        WITH named AS MATERIALIZED (
            SELECT
                e.ref, e.token, e.key, coalesce(e.kind, 'step') AS kind, coalesce(e.outcome, 'ok') AS outcome, e.body,
                coalesce(e.attempts, 1) AS attempts, e.digest, e.at, e.begun, e.place, l.crashes, l.cut_off
            FROM unnest(
                _save_refs, _save_tokens, _save_keys, _save_kinds, _save_outcomes, _save_bodies, _save_attempts,
                _save_digests, _save_ats, _save_begun
            ) WITH ORDINALITY AS e (ref, token, key, kind, outcome, body, attempts, digest, at, begun, place)
            CROSS JOIN LATERAL (
                SELECT l.crashes, l.cut_off FROM live AS l
                WHERE l.seq = e.ref AND l.token = e.token AND is_running(l.state) OFFSET 0
            ) AS l
        ),
        latest AS (
            -- Of several words about one checkpoint the last one.
            SELECT DISTINCT ON (n.ref, n.key) n.* FROM named AS n ORDER BY n.ref, n.key, n.place DESC
        ),
        kept AS (
            INSERT INTO checkpoint AS c (run, position, key, kind, outcome, attempts, digest, at, started_at, saved_at, body)
            SELECT
                n.ref, nextval('position'), n.key, n.kind, n.outcome, n.attempts, n.digest, n.at, n.begun, now, n.body
            FROM (SELECT * FROM latest ORDER BY place) AS n
            ON CONFLICT (run, key) DO UPDATE SET
                position = excluded.position, kind = excluded.kind, outcome = excluded.outcome,
                attempts = excluded.attempts, digest = excluded.digest, at = excluded.at,
                started_at = excluded.started_at, saved_at = excluded.saved_at, body = excluded.body
        )
        SELECT
            count(*) AS rows, array_agg(n.ref) FILTER (WHERE n.crashes > 0 AND n.outcome <> 'open') AS progressed,
            array_agg(n.ref) FILTER (WHERE n.cut_off) AS cut_off
        INTO _kept
        FROM named AS n;
        _odd := _kept.rows < cardinality(_save_refs);
        IF _kept.progressed IS NOT NULL OR _kept.cut_off IS NOT NULL THEN
            UPDATE live AS l SET
                cut_off = false, crashes = CASE WHEN l.seq = ANY (_kept.progressed) THEN 0 ELSE l.crashes END
            WHERE l.seq = ANY (_kept.progressed || _kept.cut_off);
        END IF;
        IF _save_consumes IS NOT NULL THEN
            -- At 0 they give back what they had taken.
            UPDATE signal AS s SET body = s.taken, taken = NULL, taken_by = NULL
            FROM unnest(_save_refs, _save_tokens, _save_consumes, _save_keys) AS e (ref, token, position, key)
            CROSS JOIN LATERAL (
                SELECT 1 FROM live AS l WHERE l.seq = e.ref AND l.token = e.token AND is_running(l.state) OFFSET 0
            ) AS l
            WHERE e.position = 0 AND s.run = e.ref AND s.taken_by = e.key AND s.taken IS NOT NULL;
            UPDATE signal AS s SET taken = s.body, taken_by = e.key, body = NULL
            FROM unnest(_save_refs, _save_tokens, _save_consumes, _save_keys) AS e (ref, token, position, key)
            CROSS JOIN LATERAL (
                SELECT 1 FROM live AS l WHERE l.seq = e.ref AND l.token = e.token AND is_running(l.state) OFFSET 0
            ) AS l
            WHERE s.run = e.ref AND s.position = e.position AND s.body IS NOT NULL;
        END IF;
    END IF;

    IF _put_back IS NOT NULL THEN
        -- What else they had to say is kept.
        PERFORM come_again(now, _put_back);
    END IF;

    IF _tell_refs IS NOT NULL THEN
        INSERT INTO status AS s (run, body)
        SELECT e.ref, e.status FROM unnest(_tell_refs, _tell_tokens, _tells) AS e (ref, token, status)
        CROSS JOIN LATERAL (
            SELECT 1 FROM live AS l WHERE l.seq = e.ref AND l.token = e.token AND is_running(l.state) OFFSET 0
        ) AS l
        ON CONFLICT (run) DO UPDATE SET body = excluded.body;
        GET DIAGNOSTICS _count = ROW_COUNT;
        _odd := _odd OR _count < cardinality(_tell_refs);
    END IF;

    IF _end_refs IS NOT NULL THEN
        WITH named AS MATERIALIZED (
            -- Looked up one by one, and locked: the highest number first, as whoever cancels locks them.
            SELECT
                l.*, e.token, coalesce(e.state, 'succeeded') AS state, e.body, e.cause, e.number
            FROM (
                SELECT * FROM unnest(_end_refs, _end_tokens, _end_states, _end_bodies, _end_causes) WITH ORDINALITY
                    AS u (ref, token, state, body, cause, number)
                ORDER BY u.ref DESC
            ) AS e
            CROSS JOIN LATERAL (
                SELECT
                    l.seq, l.place, l.started_at, l.deadline, l.lane, l.attempt, l.crashes, l.ties, l.grp, l.session, l.slot
                FROM live AS l WHERE l.seq = e.ref AND l.token = e.token AND is_running(l.state) FOR UPDATE
            ) AS l
        ),
        removed AS (
            DELETE FROM live AS l WHERE l.seq = ANY (ARRAY(SELECT n.seq FROM named AS n))
        ),
        kept AS (
            INSERT INTO ended (
                seq, finish, finished_at, place, settled, started_at, deadline, lane, attempt, crashes, ties, state, cause,
                body
            )
            SELECT
                n.seq, nextval('finish'), now, n.place, n.token, n.started_at, n.deadline, n.lane, n.attempt, n.crashes,
                n.ties, n.state, n.cause, n.body
            FROM (SELECT * FROM named ORDER BY number) AS n
        ),
        counted AS (
            INSERT INTO tally AS t (lane, shard, succeeded, failed, cancelled)
            SELECT
                n.lane, (_worker % 16)::smallint, count(*) FILTER (WHERE n.state = 'succeeded'),
                count(*) FILTER (WHERE n.state = 'failed'), count(*) FILTER (WHERE n.state = 'cancelled')
            FROM named AS n GROUP BY n.lane ORDER BY n.lane
            ON CONFLICT (lane, shard) DO UPDATE SET
                succeeded = t.succeeded + excluded.succeeded, failed = t.failed + excluded.failed,
                cancelled = t.cancelled + excluded.cancelled
        )
        SELECT
            count(*) AS runs, coalesce(bit_or(n.ties), 0) AS ties, array_agg(n.seq) AS seqs,
            array_agg(n.grp) FILTER (WHERE n.slot > 0) AS groups,
            array_agg(n.session) FILTER (WHERE n.session IS NOT NULL) AS sessions,
            bool_or(n.deadline IS NOT NULL) AS timed
        INTO _kept
        FROM named AS n;
        _odd := _odd OR _kept.runs < cardinality(_end_refs);
        IF _kept.runs > 0 THEN
            IF _kept.ties & 226 <> 0 OR _kept.groups IS NOT NULL OR _kept.sessions IS NOT NULL
                OR EXISTS (SELECT 1 FROM wait AS w WHERE w.what = 'run')
            THEN
                _plain := false;
                _ready := follow(now, _kept.seqs, _kept.ties, _kept.groups, _kept.sessions) OR _ready;
            END IF;
            _ready := _ready OR _head.limited;
            _plain := _plain AND NOT _kept.timed;
            IF _kept.ties & 1 <> 0 THEN
                PERFORM tell_work(true);  -- A parent may be running, and watch for this.
            END IF;
            IF _head.for_ends THEN
                PERFORM tell_ends(_kept.seqs);
            END IF;
        END IF;
    END IF;

    IF _move_refs IS NOT NULL THEN
        SELECT m.moved, m.ready INTO _kept
        FROM move_on(
            now, _move_refs, _move_tokens, _move_tos, _move_bodies, _move_delays, _move_ats, _move_waits,
            CASE WHEN _draining THEN _worker END, _overdue
        ) AS m;
        _odd := _odd OR _kept.moved < cardinality(_move_refs);
        _ready := _ready OR _kept.ready OR _head.limited;
    END IF;

    IF _odd OR _watch_refs IS NOT NULL OR _owned_refs IS NOT NULL THEN
        refused := refused(
            _save_refs || _end_refs || _move_refs || _tell_refs || _watch_refs || _owned_refs,
            _save_tokens || _end_tokens || _move_tokens || _tell_tokens || _watch_tokens || _owned_tokens,
            coalesce(_end_tokens, '{}') || coalesce(_move_tokens, '{}')
        );
    END IF;

    IF _fires IS NOT NULL THEN
        _ready := fire(now, _fires) OR _ready;
    END IF;

    IF _save_starts IS NOT NULL OR _fires IS NOT NULL THEN
        -- They may have made lanes; and so may others, whose lanes cannot be seen yet.
        IF (SELECT t.last_value + t.is_called::integer FROM topology AS t) <> _head.topology THEN
            topology := NULL;
            _lanes := served(_worker);
            lanes := lanes_told(_lanes);
            _open := unpaused(_lanes);
        END IF;
    END IF;

    _plain := _plain AND NOT _head.limited AND _head.sessions = 0 AND NOT _head.recheck
        AND coalesce(least(_head.timer, _head.deadline, _head.idle) > now, true);
    IF NOT (_silent OR _plain) THEN
        IF _draining AND _head.sessions > 0 THEN
            _ready := give_up(now, _worker) OR _ready;
        END IF;
        IF _head.recheck THEN
            SELECT c.* INTO _left FROM catch_up(now) AS c;
            _ready := _left.ready OR _ready;
            _held := _left.held;
        END IF;
        IF _head.timer <= now THEN
            _count := queue_up(now, ARRAY(
                SELECT l.seq FROM live AS l WHERE l.wake_at <= now ORDER BY l.wake_at LIMIT 500 FOR NO KEY UPDATE SKIP LOCKED
            ));
            _ready := _ready OR _count > 0;
            more := _count = 500;
        END IF;
        _count := 0;
        IF _head.deadline <= now THEN
            _count := expire(now, 500, _overdue[1], _overdue[2], _overdue[3], _overdue[4]);
            more := more OR _count = 500;
        END IF;
        IF _head.idle <= now THEN
            _ready := let_go(now) OR _ready;
        END IF;
        IF _repeated AND _slots > 0 THEN
            -- What the first one claimed stays claimed; only the slots that it left empty are filled.
            SELECT count(*), coalesce(max(l.token) + 1, _first) INTO _already, _token
            FROM live AS l WHERE l.worker = _worker AND l.state = 'running' AND l.token BETWEEN _first AND _first + 255;
            _slots := greatest(_slots - _already, 0);
        END IF;
        -- While there are more runs whose time is over, a claim might bring one of them: they come first.
        IF _count = 500 THEN
            _slots := 0;
        END IF;
        _strict := _head.limited OR (_head.sessions > 0 AND any_ready(_open, ARRAY[-1]));
    END IF;
    IF NOT _silent THEN
        IF _strict THEN
            SELECT c.* INTO _outlook FROM claim_within(_clock, now, _worker, _open, _slots, _after, _token, _bytes) AS c;
            _already := _already + _outlook.claimed;
        ELSIF _slots > 0 AND cardinality(_open) > 0 AND (_more OR _ready OR _count > 0) THEN
            -- What has come since the look at the beginning is found by the last one, and claimed next.
            IF _floor_lanes IS NOT NULL AND NOT _plain THEN
                SELECT b.last_value + b.is_called::integer INTO _head.rewind FROM rewind AS b;
            END IF;
            rewind := _head.rewind;
            IF _rewind <> rewind THEN
                _floor_lanes := NULL;
            END IF;
            _walked := pg_stat_get_xact_tuples_returned('live_ready'::regclass);
            _claims := claim(
                _clock, now, _worker, _open, CASE WHEN _head.sessions > 0 THEN ARRAY[0, _worker] ELSE ARRAY[0] END, _slots, _after,
                _token, _bytes, _floor_lanes, _floor_priorities, _floor_places
            );
            -- So many entries are walked only where those of runs that were claimed long ago can't be removed, since
            -- somebody holds a snapshot: the next claims begin where this one ended.
            IF _claims.floored OR pg_stat_get_xact_tuples_returned('live_ready'::regclass) - _walked > 1000 + 4 * _slots THEN
                SELECT json_agg(json_build_array(f.lane, f.priority, f.place))::text INTO floors
                FROM (
                    SELECT DISTINCT ON (l.lane) l.lane, l.priority, l.place
                    FROM live AS l WHERE l.seq = ANY (_claims.refs) AND l.owner = 0
                    ORDER BY l.lane, l.priority DESC, l.place DESC
                ) AS f;
            END IF;
            floored := _claims.floored;
        END IF;
        IF _already > 0 THEN
            _claims := claimed(_worker, _first);
        END IF;
        tokens := _claims.tokens;
        refs := _claims.refs;
        ids := _claims.ids;
        lane_ids := _claims.lanes;
        inputs := _claims.inputs;
        attempts := _claims.attempts;
        created_ats := _claims.created_ats;
        particulars := _claims.particulars;
    END IF;

    IF _watches IS NOT NULL THEN
        SELECT s.page, s.more INTO seen, _more_seen FROM seen(now, _watches) AS s;
    END IF;
    IF _head.cancelling OR NOT (_silent OR _plain) OR cardinality(array_remove(particulars, NULL)) > 0 THEN
        SELECT json_agg(json_build_array(l.token, json_build_object('reason', l.cancelling, 'deadline', l.overdue)))::text
        INTO cancelled
        FROM live AS l WHERE l.worker = _worker AND l.state = 'running' AND l.cancelling IS NOT NULL;
    END IF;
    IF _silent OR _plain THEN
        next_at := least(_head.timer, _head.deadline, _head.slot);
    ELSE
        SELECT least(
            (SELECT l.wake_at FROM live AS l WHERE l.wake_at IS NOT NULL ORDER BY l.wake_at LIMIT 1),
            (
                SELECT l.deadline FROM live AS l WHERE l.deadline IS NOT NULL AND l.cancelling IS NULL
                ORDER BY l.deadline LIMIT 1
            ),
            CASE WHEN _fires IS NULL THEN _head.slot ELSE (
                SELECT s.next_slot FROM schedule AS s
                WHERE s.next_slot > now AND NOT s.paused ORDER BY s.next_slot LIMIT 1
            ) END
        )
        INTO next_at;
        -- Of what limits and rates say each worker asks for itself: all would wake each other while one holds.
        _sooner := next_at < coalesce(least(_head.timer, _head.deadline, _head.slot), 9223372036854775807);
    END IF;
    IF _silent OR (_plain AND (_slots <= 0 OR NOT _more)) THEN
        more := _more;
        IF _more AND (_head.limited OR (_head.sessions > 0 AND any_ready(_open, ARRAY[-1]))) THEN
            _strict := true;
            more := false;
            SELECT c.* INTO _outlook FROM claim_within(_clock, now, _worker, _open, 0, _after, _first, _bytes) AS c;
        END IF;
    ELSE
        more := more OR floored IS TRUE OR (_slots <= 0 AND _floor_lanes IS NOT NULL);
        IF NOT (more OR _strict) THEN
            more := any_ready(_open, _owners);
        END IF;
    END IF;
    IF _due THEN
        due := due(now, 10, _skips);
    END IF;
    IF _strict THEN
        more := more OR _outlook.more;
        next_at := least(next_at, _outlook.opens_at);
    END IF;
    more := more OR _more_seen;
    IF _head.for_status AND (
        _ready OR tokens IS NOT NULL OR _end_refs IS NOT NULL OR _move_refs IS NOT NULL OR _tell_refs IS NOT NULL
    ) THEN
        PERFORM pg_notify(channel(), 's');
    END IF;
    IF _sooner THEN
        PERFORM tell_work();
    ELSIF _ready THEN
        PERFORM tell_ready();
    END IF;
    -- Workers set their clocks by this: nothing that they are given began later.
    now := coalesce(_clock, clock_ms());
    -- What somebody else had in hand. Nobody is told of it: all would tell each other, as long as it is there. What
    -- transactions of applications hold may take long, and their commit calls.
    IF NOT (_silent OR _plain) THEN
        IF EXISTS (SELECT 1 FROM recheck) THEN
            next_at := least(next_at, now + CASE WHEN _held THEN 1000 ELSE 50 END);
        END IF;
    END IF;
END $$;

INSERT INTO migration (version, name, oldest) VALUES (6, '0006_exchange', 1);

COMMIT;
