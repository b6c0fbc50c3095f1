-- Making runs.

BEGIN;

-- The number of the lock that those who make lanes share until they commit.
CREATE FUNCTION lanes_lock() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT hashtextextended(current_schema() || chr(31) || 'lanes', 10) $$;

-- The numbers of lanes, in the order asked for; those that do not exist yet are made. Those who make the same one wait
-- for each other, but only for their kind: nobody else waits for a transaction of an application (`_later`). Uses
-- lane_name.
CREATE FUNCTION lanes_of(_queues text[], _workflows text[], _versions text[], _later boolean) RETURNS integer[]
LANGUAGE plpgsql AS $$
DECLARE
    _lanes integer[];
BEGIN
    FOR _try IN 1..3 LOOP
        SELECT array_agg(l.id ORDER BY e.place) INTO _lanes
        FROM unnest(_queues, _workflows, _versions) WITH ORDINALITY AS e (queue, workflow, version, place)
        LEFT JOIN LATERAL (
            SELECT a.id FROM lane AS a
            WHERE a.queue = e.queue AND a.workflow = e.workflow AND a.version = e.version ORDER BY a.id LIMIT 1
        ) AS l ON true;
        EXIT WHEN array_position(_lanes, NULL) IS NULL;
        IF _try = 1 THEN
            PERFORM pg_advisory_xact_lock(hashtextextended(m.name, CASE WHEN _later THEN 9 ELSE 8 END))
            FROM (
                SELECT DISTINCT concat_ws(chr(31), current_schema(), e.queue, e.workflow, e.version) AS name
                FROM unnest(_queues, _workflows, _versions, _lanes) AS e (queue, workflow, version, lane)
                WHERE e.lane IS NULL
                ORDER BY 1
            ) AS m;
            CONTINUE;
        END IF;
        INSERT INTO lane (queue, workflow, version)
        SELECT DISTINCT e.queue, e.workflow, e.version
        FROM unnest(_queues, _workflows, _versions, _lanes) AS e (queue, workflow, version, lane)
        WHERE e.lane IS NULL
        ORDER BY 1, 2, 3;
        IF _later THEN
            INSERT INTO recheck (word) VALUES ('{"what": "lane"}');
        ELSE
            PERFORM pg_advisory_xact_lock_shared(lanes_lock());
            PERFORM nextval('topology');
        END IF;
    END LOOP;
    RETURN _lanes;
END $$;

-- Makes runs in the order of the arrays; an id that exists is left alone. Returns the numbers of those that were made,
-- NULL for the others. All arrays but the first eight may be NULL, and those of priorities (then 0) and of crashes (5).
-- `_behind` makes runs that wait: their deadlines are the times that they have, from when they may begin. Ids are locked in their order by the unique index of run. `_later` is for transactions
-- of applications, which may be long: counting is left to the workers.
CREATE FUNCTION make(
    _now bigint, _ids text[], _lanes integer[], _inputs text[], _priorities integer[], _dues bigint[],
    _deadlines bigint[], _max_crashes integer[], _parents text[], _groups bigint[], _keeps boolean[],
    _sessions bigint[], _batches text[], _keys text[], _debounced boolean[], _labels text[], _behind boolean,
    _later boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    _seqs bigint[];
    _made bigint[];
    _number integer := cardinality(_ids);
    _ties integer[];
BEGIN
    _seqs := ARRAY(SELECT nextval('place') FROM generate_series(1, _number));
    WITH new AS (
        INSERT INTO run (
            seq, id, lane, priority, max_crashes, created_at, ties, grp, session, keep, debounced, parent, batch,
            unique_key, input
        )
        SELECT
            e.seq, e.id, e.lane, coalesce(e.priority, 0), coalesce(e.max_crashes, 5), _now,
            (e.parent IS NOT NULL)::integer + (e.batch IS NOT NULL)::integer * 2 + (e.unique_key IS NOT NULL)::integer * 4
            + (e.labels IS NOT NULL)::integer * 8,
            e.grp, e.session, e.keep, e.debounced, e.parent, e.batch, e.unique_key, e.input
        FROM unnest(
            _seqs, _ids, _lanes, _priorities, _max_crashes, _groups, _sessions, _keeps, _debounced, _parents,
            _batches, _keys, _inputs, _labels
        ) AS e (
            seq, id, lane, priority, max_crashes, grp, session, keep, debounced, parent, batch, unique_key, input, labels
        )
        ORDER BY e.id, e.seq
        ON CONFLICT (id) DO NOTHING
        RETURNING seq
    )
    SELECT array_agg(seq) INTO _made FROM new;
    IF cardinality(_made) = _number THEN
        _made := _seqs;
    ELSIF _made IS NULL THEN
        RETURN array_fill(NULL::bigint, ARRAY[_number]);
    ELSE
        _made := ARRAY(
            -- Numbers ascend, as the places of the runs do.
            SELECT CASE WHEN count(*) = 2 THEN e.seq END
            FROM (SELECT unnest(_seqs) AS seq UNION ALL SELECT unnest(_made)) AS e
            GROUP BY e.seq ORDER BY e.seq
        );
    END IF;
    INSERT INTO live (
        seq, place, wake_at, deadline, due, timeout, owner, lane, priority, max_crashes, ties, grp, session, slot, seat, keep,
        debounced, state, held, unique_key
    )
    SELECT
        e.seq,
        CASE WHEN e.grp IS NULL THEN e.seq END,
        CASE WHEN NOT _behind THEN e.due END,
        CASE WHEN NOT _behind THEN e.deadline END,
        CASE WHEN _behind THEN e.due END,
        CASE WHEN _behind THEN e.deadline END,
        CASE WHEN e.session IS NULL THEN 0 ELSE -1 END,
        e.lane, coalesce(e.priority, 0), coalesce(e.max_crashes, 5),
        (e.parent IS NOT NULL)::integer + (e.batch IS NOT NULL)::integer * 2 + (e.unique_key IS NOT NULL)::integer * 4
        + (e.labels IS NOT NULL)::integer * 8,
        e.grp, e.session,
        CASE WHEN e.grp IS NULL THEN NULL WHEN _behind OR e.due IS NOT NULL THEN 0 ELSE 2 END,
        CASE WHEN e.session IS NULL OR _behind OR e.due IS NOT NULL THEN NULL WHEN e.grp IS NULL THEN 2 ELSE 0 END,
        e.keep, e.debounced,
        CASE WHEN _behind THEN 'waiting' WHEN e.due IS NOT NULL THEN 'scheduled' ELSE 'queued' END,
        CASE
            WHEN _behind OR e.due IS NOT NULL THEN NULL
            WHEN e.grp IS NOT NULL THEN 'group'
            WHEN e.session IS NOT NULL THEN 'session'
        END,
        e.unique_key
    FROM unnest(
        _made, _lanes, _priorities, _dues, _deadlines, _max_crashes, _parents, _groups, _sessions, _keeps, _debounced,
        _batches, _keys, _labels
    ) AS e (
        seq, lane, priority, due, deadline, max_crashes, parent, grp, session, keep, debounced, batch, unique_key, labels
    )
    WHERE e.seq IS NOT NULL;
    IF _later THEN
        INSERT INTO recheck (word)
        SELECT jsonb_build_object('what', 'count', 'lane', e.lane, 'runs', count(*))
        FROM unnest(_made, _lanes) AS e (seq, lane) WHERE e.seq IS NOT NULL
        GROUP BY e.lane;
    ELSE
        INSERT INTO tally AS t (lane, shard, runs)
        SELECT e.lane, shard(), count(*) FROM unnest(_made, _lanes) AS e (seq, lane) WHERE e.seq IS NOT NULL
        GROUP BY e.lane ORDER BY e.lane
        ON CONFLICT (lane, shard) DO UPDATE SET runs = t.runs + excluded.runs;
    END IF;
    IF _labels IS NOT NULL THEN
        INSERT INTO label (run, key, value)
        SELECT e.seq, v.key, v.value
        FROM unnest(_made, _labels) AS e (seq, labels) CROSS JOIN json_each_text(e.labels::json) AS v
        WHERE e.seq IS NOT NULL AND e.labels IS NOT NULL;
    END IF;
    IF _batches IS NOT NULL THEN
        INSERT INTO batch AS b (id, total)
        SELECT e.batch, count(*) FROM unnest(_made, _batches) AS e (seq, batch)
        WHERE e.seq IS NOT NULL AND e.batch IS NOT NULL
        GROUP BY e.batch ORDER BY e.batch
        ON CONFLICT (id) DO UPDATE SET total = b.total + excluded.total;
    END IF;
    IF _groups IS NOT NULL THEN
        PERFORM admit(_now, _groups, _made);
    END IF;
    IF _sessions IS NOT NULL THEN
        PERFORM reseat(_now, _sessions);
    END IF;
    RETURN _made;
END $$;

-- Whether two JSON texts stand for the same value, as far as PostgreSQL can tell.
CREATE FUNCTION same_json(_one text, _other text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN _one = _other OR _one::jsonb = _other::jsonb;
EXCEPTION WHEN data_exception THEN
    RETURN false;
END $$;

-- Answers to starts of which some were there: for each, whether its run was there, and whether that has the same
-- workflow and was started with the same input. Uses the unique index of run ids.
CREATE FUNCTION compare(
    _ids text[], _workflows text[], _inputs text[], _made bigint[], OUT existed boolean[], OUT same boolean[]
) LANGUAGE sql STABLE AS $$
    SELECT
        array_agg(e.made IS NULL ORDER BY e.place),
        array_agg(
            e.made IS NOT NULL OR coalesce(l.workflow = e.workflow AND same_json(coalesce(r.first, r.input), e.input), true)
            ORDER BY e.place
        )
    FROM unnest(_ids, _workflows, _inputs, _made) WITH ORDINALITY AS e (id, workflow, input, made, place)
    LEFT JOIN run AS r ON r.id = e.id AND e.made IS NULL
    LEFT JOIN lane AS l ON l.id = r.lane
$$;

-- Makes plain runs: of one priority and patience, without group, session, key, batch or labels. This is the way in of
-- bulk starts. `_places` tells for each run which of the lanes is its; NULL for the first one.
CREATE FUNCTION enqueue(
    _clock bigint, _ids text[], _inputs text[], _places integer[], _queues text[], _workflows text[],
    _versions text[], _priorities integer[], _ats bigint[], _delays bigint[], _timeouts bigint[],
    _max_crashes integer[], _parents text[], OUT existed boolean[], OUT same boolean[]
) LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _number integer := cardinality(_ids);
    _named integer[] := lanes_of(_queues, _workflows, _versions, false);
    _lanes integer[];
    _dues bigint[];
    _deadlines bigint[];
    _made bigint[];
BEGIN
    IF _places IS NULL THEN
        _places := array_fill(1, ARRAY[_number]);
    END IF;
    IF cardinality(_named) = 1 THEN
        _lanes := array_fill(_named[1], ARRAY[_number]);
    ELSE
        _lanes := ARRAY(SELECT _named[e] FROM unnest(_places) AS e);
    END IF;
    IF _ats IS NOT NULL OR _delays IS NOT NULL OR _timeouts IS NOT NULL THEN
        SELECT array_agg(CASE WHEN d.due > _now THEN d.due END ORDER BY e.place),
            array_agg(greatest(d.due, _now) + e.timeout ORDER BY e.place)
        INTO _dues, _deadlines
        FROM unnest(_ids, _ats, _delays, _timeouts) WITH ORDINALITY AS e (id, at, delay, timeout, place)
        CROSS JOIN LATERAL (SELECT coalesce(e.at, _now + coalesce(e.delay, 0)) AS due) AS d;
    END IF;
    _made := make(
        _now, _ids, _lanes, _inputs, _priorities, _dues, _deadlines, _max_crashes, _parents,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, false
    );
    IF array_position(_made, NULL) IS NOT NULL THEN
        SELECT c.existed, c.same INTO existed, same
        FROM compare(_ids, ARRAY(SELECT _workflows[e] FROM unnest(_places) AS e), _inputs, _made) AS c;
    END IF;
    PERFORM tell_work(false, _queues, _workflows, _versions);
END $$;

-- The group of a key and queue, made if need be with the limit of this start, unless one is stored: later ones do not
-- change it. It is kept from being removed until the end of the transaction.
CREATE FUNCTION group_of(_queue text, _key text, _limit integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    _id bigint;
BEGIN
    LOOP
        SELECT g.id INTO _id FROM grp AS g WHERE g.key = _key AND g.queue = _queue FOR KEY SHARE;
        EXIT WHEN FOUND;
        INSERT INTO grp (key, queue, asked, most, paused)
        SELECT _key, _queue, _limit, coalesce(s.running, _limit), coalesce(s.paused, false)
        FROM (SELECT 1) AS one LEFT JOIN scope AS s ON s.kind = 'group' AND s.name = _key
        ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN _id;
END $$;

-- The session of a key and queue, made if need be; kept from being removed until the end of the transaction.
CREATE FUNCTION session_of(_queue text, _key text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    _id bigint;
BEGIN
    LOOP
        SELECT s.id INTO _id FROM session AS s WHERE s.key = _key AND s.queue = _queue FOR KEY SHARE;
        EXIT WHEN FOUND;
        INSERT INTO session (key, queue) VALUES (_key, _queue) ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN _id;
END $$;

-- Makes runs of any kind but those with unique keys, from a JSON list of starts. `_makers` names, for each, the running
-- run whose checkpoint starts it. `_later` leaves groups and sessions to the workers.
CREATE FUNCTION make_all(
    _now bigint, _starts jsonb, _makers bigint[], _behind boolean, _later boolean,
    OUT ids text[], OUT existed boolean[], OUT same boolean[], OUT limits integer[]
) LANGUAGE plpgsql AS $$
DECLARE
    _all record;
    _made bigint[];
    _idle bigint[];
BEGIN
    WITH listed AS (
        SELECT
            s.*,
            nullif(s.group, '') AS grp,
            nullif(s.session, '') AS seat,
            coalesce(s.parent, (SELECT r.id FROM run AS r WHERE r.seq = _makers[s.place])) AS of,
            coalesce(s.at, _now + coalesce(s.delay, 0)) AS due
        FROM ROWS FROM (
            jsonb_to_recordset(_starts) AS (
                id text, workflow text, queue text, input text, priority integer, at bigint, delay bigint, timeout bigint,
                max_crashes integer, parent text, version text, "group" text, group_limit integer, group_keep boolean,
                session text, "unique" jsonb, labels jsonb, batch text
            )
        ) WITH ORDINALITY AS s (
            id, workflow, queue, input, priority, at, delay, timeout, max_crashes, parent, version, "group", group_limit,
            group_keep, session, "unique", labels, batch, place
        )
    ),
    -- Groups and sessions are made, and locked, in the order of their names; of a group the first start that makes a run
    -- brings the limit.
    counted AS (
        SELECT
            l.*,
            -- Said in this way, so that not all ids there are are read to be looked up.
            l.grp IS NOT NULL AND NOT _later AND (SELECT r.seq FROM run AS r WHERE r.id = l.id) IS NULL
                AND row_number() OVER (PARTITION BY l.id ORDER BY l.place) = 1 AS joins
        FROM listed AS l
    ),
    grouped AS (
        SELECT
            c.*,
            CASE
                WHEN c.joins AND row_number() OVER (PARTITION BY c.queue, c.grp, c.joins ORDER BY c.place) = 1
                THEN group_of(c.queue, c.grp, coalesce(c.group_limit, 1))
            END AS made
        FROM counted AS c
    ),
    tied AS (
        SELECT
            g.*,
            max(g.made) OVER (PARTITION BY g.queue, g.grp) AS of_group,
            CASE
                WHEN g.seat IS NOT NULL AND NOT _later
                    AND row_number() OVER (PARTITION BY g.queue, g.seat ORDER BY g.place) = 1
                THEN session_of(g.queue, g.seat)
            END AS sat
        FROM grouped AS g
    )
    SELECT
        array_agg(l.id) AS ids,
        lanes_of(
            array_agg(l.queue), array_agg(l.workflow), array_agg(coalesce(l.version, '')), _later
        ) AS lanes,
        array_agg(l.workflow) AS workflows,
        array_agg(l.input) AS inputs,
        array_agg(coalesce(l.priority, 0)) AS priorities,
        array_agg(CASE WHEN l.due > _now THEN l.due END) AS dues,
        array_agg(CASE WHEN _behind THEN l.timeout ELSE greatest(l.due, _now) + l.timeout END) AS deadlines,
        array_agg(coalesce(l.max_crashes, 5)) AS max_crashes,
        array_agg(l.of) AS parents,
        array_agg(l.of_group) AS groups,
        array_agg(CASE WHEN l.grp IS NOT NULL THEN coalesce(l.group_limit, 1) END) AS asked,
        array_agg(CASE WHEN l.grp IS NOT NULL THEN coalesce(l.group_keep, true) END) AS keeps,
        array_agg(l.of_session) AS sessions,
        array_agg(nullif(l.batch, '')) AS batches,
        array_agg(l.unique ->> 'key') AS keys,
        array_agg(CASE WHEN l.unique ->> 'on_conflict' = 'debounce' THEN true END) AS debounced,
        array_agg(CASE WHEN l.labels <> '{}' THEN l.labels::text END) AS labels,
        bool_or(l.of_group IS NOT NULL) AS any_group,
        bool_or(l.of_session IS NOT NULL) AS any_session,
        bool_or(l.batch <> '') AS any_batch,
        bool_or(l.labels <> '{}') AS any_label
    INTO _all
    FROM (
        SELECT t.*, max(t.sat) OVER (PARTITION BY t.queue, t.seat) AS of_session FROM tied AS t ORDER BY t.place
    ) AS l;
    _made := make(
        _now, _all.ids, _all.lanes, _all.inputs, _all.priorities, _all.dues, _all.deadlines, _all.max_crashes,
        _all.parents,
        CASE WHEN _all.any_group THEN _all.groups END,
        _all.keeps,
        CASE WHEN _all.any_session THEN _all.sessions END,
        CASE WHEN _all.any_batch THEN _all.batches END,
        _all.keys,
        _all.debounced,
        CASE WHEN _all.any_label THEN _all.labels END,
        _behind, _later
    );
    IF _later THEN
        PERFORM join_later(_starts, _made);
    END IF;
    ids := _all.ids;
    IF _all.any_group THEN
        -- The limits that hold, where nobody asked for those that the starts bring.
        limits := ARRAY(
            SELECT CASE WHEN e.made IS NOT NULL AND e.asked NOT IN (g.asked, g.most) THEN g.most END
            FROM unnest(_all.groups, _all.asked, _made) WITH ORDINALITY AS e (grp, asked, made, place)
            LEFT JOIN grp AS g ON g.id = e.grp
            ORDER BY e.place
        );
    END IF;
    IF array_position(_made, NULL) IS NULL THEN
        existed := array_fill(false, ARRAY[cardinality(ids)]);
        same := array_fill(true, ARRAY[cardinality(ids)]);
    ELSE
        SELECT c.existed, c.same INTO existed, same FROM compare(ids, _all.workflows, _all.inputs, _made) AS c;
        -- Groups and sessions that were made for runs that were not. Who keeps one for a run of his own has it locked;
        -- those that are locked here are looked at once more, since such a run may have come just before.
        _idle := ARRAY(SELECT g.id FROM grp AS g WHERE g.id = ANY (_all.groups) FOR UPDATE SKIP LOCKED);
        DELETE FROM grp AS g WHERE g.id = ANY (_idle) AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.grp = g.id);
        _idle := ARRAY(SELECT s.id FROM session AS s WHERE s.id = ANY (_all.sessions) FOR UPDATE SKIP LOCKED);
        DELETE FROM session AS s
        WHERE s.id = ANY (_idle) AND s.owner IS NULL AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.session = s.id);
    END IF;
END $$;

-- The number of the lock on a unique key of a workflow.
CREATE FUNCTION key_lock(_workflow text, _key text) RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT hashtextextended(current_schema() || chr(31) || _workflow || chr(31) || _key, 7) $$;

-- The live run that holds a unique key of a workflow, or that took it after a time. Locks the key until the end of the
-- transaction. Uses live_unique and run_unique.
CREATE FUNCTION holder_of(
    _workflow text, _key text, _since bigint, OUT seq bigint, OUT id text, OUT begun boolean, OUT holds boolean
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(key_lock(_workflow, _key));
    -- The few of the key first, here and below: a plan from when there were few runs would walk all of them else.
    SELECT h.seq, (SELECT r.id FROM run AS r WHERE r.seq = h.seq), h.started_at IS NOT NULL, true
    INTO seq, id, begun, holds
    FROM (SELECT x.* FROM live AS x WHERE x.unique_key = _key OFFSET 0) AS h JOIN lane AS l ON l.id = h.lane
    WHERE l.workflow = _workflow AND (h.debounced IS NULL OR h.started_at IS NULL)
    ORDER BY h.seq DESC LIMIT 1;
    IF NOT FOUND AND _since IS NOT NULL THEN
        SELECT r.seq, r.id, true, false INTO seq, id, begun, holds
        FROM (SELECT x.* FROM run AS x WHERE x.unique_key = _key AND x.created_at > _since OFFSET 0) AS r
        JOIN lane AS l ON l.id = r.lane
        WHERE l.workflow = _workflow
        ORDER BY r.seq DESC LIMIT 1;
    END IF;
END $$;

-- Gives a run that has not begun another input, due time and deadline; false when it has begun or ended before it could
-- be locked. One that waits for something goes on waiting, and one that a rate put off does not begin before that lets
-- it. Uses the primary key.
CREATE FUNCTION replace_start(_now bigint, _run bigint, _input text, _due bigint, _deadline bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    _was record;
BEGIN
    SELECT l.state, l.held, l.wake_at, l.grp, l.session INTO _was
    FROM live AS l WHERE l.seq = _run AND l.started_at IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE run AS r SET first = coalesce(r.first, r.input), input = _input WHERE r.seq = _run;
    IF _was.state = 'waiting' OR (_was.held = 'rate' AND coalesce(_due, 0) <= _was.wake_at) THEN
        UPDATE live AS l SET
            deadline = CASE WHEN _was.state <> 'waiting' THEN _deadline END,
            due = CASE WHEN _was.state = 'waiting' THEN _due END,
            timeout = CASE WHEN _was.state = 'waiting' THEN _deadline - coalesce(_due, _now) END
        WHERE l.seq = _run;
    ELSIF _due IS NOT NULL THEN
        UPDATE live AS l SET
            state = 'scheduled', wake_at = _due, deadline = _deadline, held = NULL, seat = NULL,
            slot = CASE WHEN l.slot IS NOT NULL THEN 0 END
        WHERE l.seq = _run;
        PERFORM admit(_now, ARRAY[_was.grp]);
        PERFORM reseat(_now, ARRAY[_was.session]);
    ELSE
        UPDATE live AS l SET deadline = _deadline WHERE l.seq = _run;
        PERFORM queue_up(_now, ARRAY[_run]);
    END IF;
    RETURN true;
END $$;

-- Makes runs of any kind, from a JSON list of starts, in order; an id that exists, or came before in the list, is left
-- as it is and told of, and so is the run that a unique key leads to.
CREATE FUNCTION start_all(
    _now bigint, _starts jsonb, _makers bigint[], _behind boolean, _later boolean,
    OUT ids text[], OUT existed boolean[], OUT same boolean[], OUT limits integer[]
) LANGUAGE plpgsql AS $$
DECLARE
    _start jsonb;
    _place bigint;
    _kind text;
    _period bigint;
    _holder bigint;
    _holder_id text;
    _begun boolean;
    _due bigint;
    _one record;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM jsonb_array_elements(_starts) AS e WHERE e ? 'unique') THEN
        SELECT m.ids, m.existed, m.same, m.limits INTO ids, existed, same, limits
        FROM make_all(_now, _starts, _makers, _behind, _later) AS m;
        RETURN;
    END IF;
    -- All keys in one order: those of another list may be the same ones.
    PERFORM pg_advisory_xact_lock(k.lock)
    FROM (
        SELECT DISTINCT key_lock(e ->> 'workflow', e #>> '{unique,key}') AS lock
        FROM jsonb_array_elements(_starts) AS e
        WHERE e ? 'unique' AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = e ->> 'id' OFFSET 0)
        ORDER BY 1
    ) AS k;
    FOR _start, _place IN SELECT e.start, e.place FROM jsonb_array_elements(_starts) WITH ORDINALITY AS e (start, place)
    LOOP
        _kind := coalesce(_start #>> '{unique,on_conflict}', 'existing');
        _period := coalesce((_start #>> '{unique,period}')::bigint, 0);
        IF _kind = 'debounce' THEN
            _start := (_start - 'at') || jsonb_build_object('delay', _period);
        END IF;
        _due := coalesce((_start ->> 'at')::bigint, _now + coalesce((_start ->> 'delay')::bigint, 0));
        LOOP
            _holder := NULL;
            -- A start of an id that exists is that run, and nothing else about it matters.
            IF _start ? 'unique' AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = _start ->> 'id') THEN
                SELECT h.seq, h.id, h.begun INTO _holder, _holder_id, _begun
                FROM holder_of(
                    _start ->> 'workflow', _start #>> '{unique,key}', CASE WHEN _kind = 'throttle' THEN _now - _period END
                ) AS h;
            END IF;
            EXIT WHEN _holder IS NULL OR _begun OR _later OR _kind NOT IN ('replace', 'debounce');
            -- One that begins or ends just now may not have the key any more.
            EXIT WHEN replace_start(
                _now, _holder, _start ->> 'input', CASE WHEN _due > _now THEN _due END,
                greatest(_due, _now) + (_start ->> 'timeout')::bigint
            );
        END LOOP;
        IF _holder IS NULL THEN
            SELECT m.* INTO _one
            FROM make_all(_now, jsonb_build_array(_start), _makers[_place:_place], _behind, _later) AS m;
            ids := ids || _one.ids;
            existed := existed || _one.existed;
            same := same || _one.same;
            limits := limits || coalesce(_one.limits, ARRAY[NULL::integer]);
        ELSE
            ids := ids || _holder_id;
            existed := existed || true;
            same := same || true;
            limits := limits || NULL::integer;
            IF _kind IN ('replace', 'debounce') AND NOT _begun AND _later THEN
                INSERT INTO recheck (word) VALUES (jsonb_build_object(
                    'what', 'start', 'start', (_start - 'delay') || jsonb_build_object('at', _due)
                ));
            END IF;
        END IF;
    END LOOP;
END $$;

-- Tells workers that something may be there for them of the lanes in which runs are. Uses the unique index of run ids.
CREATE FUNCTION tell_of(_anyway boolean, _ids text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tell_work(
        _anyway, coalesce(array_agg(a.queue), '{}'), coalesce(array_agg(a.workflow), '{}'), coalesce(array_agg(a.version), '{}')
    )
    FROM lane AS a
    WHERE a.id = ANY (ARRAY(SELECT DISTINCT r.lane FROM run AS r WHERE r.id = ANY (_ids)));
END $$;

-- Makes runs of any kind, from a JSON list of starts.
CREATE FUNCTION enqueue_all(
    _clock bigint, _starts jsonb, OUT ids text[], OUT existed boolean[], OUT same boolean[], OUT limits integer[]
) LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    SELECT s.ids, s.existed, s.same, s.limits INTO ids, existed, same, limits
    FROM start_all(coalesce(_clock, clock_ms()), _starts, NULL, false, false) AS s;
    PERFORM tell_of(false, ids);
END $$;

-- Makes all runs of a batch and its callback, which waits for them; returns how they were answered, the callback last.
-- A batch that is there is left as it is. Raises where it was opened with something else, and where an id is that of a
-- run which is not of the batch.
CREATE FUNCTION open_batch(
    _clock bigint, _batch text, _starts jsonb, _callback jsonb,
    OUT ids text[], OUT existed boolean[], OUT same boolean[], OUT limits integer[]
) LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _number bigint := jsonb_array_length(_starts);
    _made record;
    _there record;
    _taken text;
    _odd integer;
BEGIN
    INSERT INTO batch (id, items, callback, empty_since)
    VALUES (_batch, _number, _callback ->> 'id', CASE WHEN _number = 0 AND _callback IS NULL THEN _now END)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT b.items, b.callback INTO _there FROM batch AS b WHERE b.id = _batch;
        IF _there.items <> _number THEN
            RAISE EXCEPTION 'with % runs, not %', _there.items, _number USING ERRCODE = 'PD008', DETAIL = _batch;
        END IF;
        IF _there.callback IS DISTINCT FROM _callback ->> 'id' THEN
            RAISE EXCEPTION '%', CASE WHEN _there.callback IS NULL THEN 'without a callback' ELSE 'with another callback' END
                USING ERRCODE = 'PD008', DETAIL = _batch;
        END IF;
        SELECT c.existed, c.same, e.ids INTO existed, same, ids
        FROM (
            SELECT
                array_agg(s ->> 'id') AS ids, array_agg(s ->> 'workflow') AS workflows, array_agg(s ->> 'input') AS inputs
            FROM jsonb_array_elements(_starts) AS s
        ) AS e
        CROSS JOIN LATERAL compare(
            e.ids, e.workflows, e.inputs, array_fill(NULL::bigint, ARRAY[coalesce(cardinality(e.ids), 0)])
        ) AS c;
    ELSE
        IF _number > 0 THEN
            SELECT s.ids, s.existed, s.same, s.limits INTO ids, existed, same, limits
            FROM start_all(_now, _starts, NULL, false, false) AS s;
            IF true = ANY (existed) THEN
                SELECT r.id INTO _taken
                FROM jsonb_array_elements(_starts) WITH ORDINALITY AS s (start, place) JOIN run AS r ON r.id = s.start ->> 'id'
                WHERE existed[s.place] AND r.batch IS DISTINCT FROM _batch LIMIT 1;
                IF FOUND THEN
                    RAISE EXCEPTION 'one of its runs' USING ERRCODE = 'PD009', DETAIL = _taken;
                END IF;
            END IF;
        END IF;
        IF _callback IS NOT NULL THEN
            SELECT s.* INTO _made FROM start_all(_now, jsonb_build_array(_callback), NULL, true, false) AS s;
            IF _made.existed[1] THEN
                RAISE EXCEPTION 'its callback' USING ERRCODE = 'PD009', DETAIL = _made.ids[1];
            END IF;
            INSERT INTO wait (run, key, what, target)
            SELECT r.seq, 'batch:' || _batch, 'batch', _batch FROM run AS r WHERE r.id = _callback ->> 'id';
            UPDATE live AS l SET ties = l.ties | 64
            WHERE l.seq = (SELECT r.seq FROM run AS r WHERE r.id = _callback ->> 'id');
            PERFORM complete_batches(_now, ARRAY[_batch]);
        END IF;
    END IF;
    _odd := array_position(same, false);
    IF _odd IS NOT NULL THEN
        RAISE EXCEPTION 'one of its runs' USING ERRCODE = 'PD009', DETAIL = ids[_odd];
    END IF;
    PERFORM tell_of(false, ids || (_callback ->> 'id'));
END $$;

-- Queues the callbacks of those of the batches of which nothing is left to wait for. Uses primary keys.
CREATE FUNCTION complete_batches(_now bigint, _batches text[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    _callbacks bigint[];
BEGIN
    _callbacks := ARRAY(
        SELECT r.seq FROM batch AS b JOIN run AS r ON r.id = b.callback
        WHERE b.id = ANY (_batches) AND b.succeeded + b.failed + b.cancelled = b.total
    );
    IF cardinality(_callbacks) = 0 THEN
        RETURN 0;
    END IF;
    RETURN let_begin(_now, _callbacks);
END $$;

INSERT INTO migration (version, name, oldest) VALUES (3, '0003_starting', 1);

COMMIT;
