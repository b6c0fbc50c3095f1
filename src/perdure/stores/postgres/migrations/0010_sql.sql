-- For transactions of applications: starts, signals and cancelling from SQL, and steps that commit their checkpoint with
-- their effect. Such a transaction may be long, so it locks nothing that workers wait for: it only adds rows, and what
-- else is to be done is left to the exchange that follows its commit. What it does hold is what it asked for: the ids
-- of its runs and their unique keys. Workers leave what is about such an id or key for later.
--
-- Those of these functions that applications call run with the rights of the schema's owner, and are nobody else's
-- until they are granted.

BEGIN;

-- --- what is left to workers

-- Puts runs that were just made by a transaction of an application behind a group that is not known yet: join_up() gives
-- them their group and session. Locks them, which nobody else sees.
CREATE FUNCTION join_later(_starts jsonb, _runs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _tied record;
BEGIN
    FOR _tied IN
        SELECT
            s.queue, coalesce(s.group, '') AS key, coalesce(s.session, '') AS session,
            min(coalesce(s.group_limit, 1)) AS most, array_agg(m.seq ORDER BY m.place) AS runs
        FROM unnest(_runs) WITH ORDINALITY AS m (seq, place)
        JOIN jsonb_array_elements(_starts) WITH ORDINALITY AS e (start, place) USING (place)
        CROSS JOIN jsonb_to_record(e.start) AS s (queue text, "group" text, group_limit integer, session text)
        WHERE m.seq IS NOT NULL AND (s.group <> '' OR s.session <> '')
        GROUP BY 1, 2, 3
    LOOP
        UPDATE live AS l SET
            place = NULL,
            slot = CASE WHEN l.state = 'queued' THEN 2 ELSE 0 END,
            held = CASE WHEN l.state = 'queued' THEN 'group' END
        WHERE l.seq = ANY (_tied.runs);
        INSERT INTO recheck (word) VALUES (jsonb_build_object(
            'what', 'join', 'queue', _tied.queue, 'group', _tied.key, 'limit', _tied.most, 'session', _tied.session,
            'runs', _tied.runs
        ));
    END LOOP;
END $$;

-- Gives runs their group and session, if they are there still. Locks them. Uses primary keys.
CREATE FUNCTION join_up(_now bigint, _queue text, _group text, _limit integer, _session text, _runs bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _grp bigint;
    _ses bigint;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM run AS r WHERE r.seq = ANY (_runs)) THEN
        RETURN;
    END IF;
    _grp := CASE WHEN _group <> '' THEN group_of(_queue, _group, _limit) END;
    _ses := CASE WHEN _session <> '' THEN session_of(_queue, _session) END;
    UPDATE run AS r SET grp = _grp, session = _ses WHERE r.seq = ANY (_runs);
    UPDATE live AS l SET
        grp = _grp,
        session = _ses,
        owner = CASE WHEN _ses IS NULL THEN 0 ELSE -1 END,
        place = CASE WHEN _grp IS NULL THEN l.seq END,
        slot = CASE WHEN _grp IS NULL THEN NULL ELSE l.slot END,
        seat = CASE WHEN l.state <> 'queued' OR _ses IS NULL THEN NULL WHEN _grp IS NULL THEN 2 ELSE 0 END,
        held = CASE WHEN l.state = 'queued' AND _grp IS NULL THEN 'session' ELSE l.held END
    WHERE l.seq = ANY (_runs) AND l.grp IS NULL AND l.slot IS NOT NULL AND l.state IN ('queued', 'scheduled');
    PERFORM admit(_now, ARRAY[_grp], _runs);
    PERFORM reseat(_now, ARRAY[_ses]);
END $$;

-- Does one thing that was left to workers: "done"; or not, while a worker has the run in hand ("busy"), or a transaction
-- of an application the unique key ("held"). What it is about may be gone: then there is nothing to do.
CREATE FUNCTION take_in(_now bigint, _word jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    _what text := _word ->> 'what';
    _run bigint;
BEGIN
    IF _what = 'count' THEN
        INSERT INTO tally AS t (lane, shard, runs)
        VALUES ((_word ->> 'lane')::integer, shard(), (_word ->> 'runs')::bigint)
        ON CONFLICT (lane, shard) DO UPDATE SET runs = t.runs + excluded.runs;
    ELSIF _what = 'lane' THEN
        PERFORM nextval('topology');
    ELSIF _what = 'join' THEN
        PERFORM join_up(
            _now, _word ->> 'queue', _word ->> 'group', (_word ->> 'limit')::integer, _word ->> 'session',
            ARRAY(SELECT e::bigint FROM jsonb_array_elements_text(_word -> 'runs') AS e)
        );
    ELSIF _what = 'start' THEN
        IF NOT pg_try_advisory_xact_lock(key_lock(_word #>> '{start,workflow}', _word #>> '{start,unique,key}')) THEN
            RETURN 'held';
        END IF;
        PERFORM start_all(_now, jsonb_build_array(_word -> 'start'), NULL, false, false);
    ELSIF _what = 'progress' THEN
        UPDATE live AS l SET crashes = 0, cut_off = false
        WHERE l.seq = (_word ->> 'run')::bigint AND l.token = (_word ->> 'token')::bigint AND l.state = 'running';
    ELSE
        SELECT r.seq INTO _run FROM run AS r WHERE r.id = _word ->> 'run';
        PERFORM 1 FROM live AS l WHERE l.seq = _run FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND AND EXISTS (SELECT 1 FROM live AS l WHERE l.seq = _run) THEN
            RETURN 'busy';
        END IF;
        IF _what = 'signal' AND FOUND THEN
            PERFORM deliver(_now, _word ->> 'id', _word ->> 'run', _word ->> 'name', _word ->> 'body');
        ELSIF _what = 'cancel' AND _run IS NOT NULL THEN
            PERFORM stop(_now, ARRAY[_run], _word ->> 'reason', (_word ->> 'children')::boolean);
        END IF;
    END IF;
    RETURN 'done';
END $$;

-- The same for what whoever may call us said: what can't be done is dropped with a warning, instead of being in the way
-- of all that comes after it. Not so where the server can't do anything just now; and nobody waits here for long
-- ("late"): somebody may have an id that would be used.
CREATE FUNCTION take_in_said(_now bigint, _word jsonb) RETURNS text LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
BEGIN
    RETURN take_in(_now, _word);
EXCEPTION
    WHEN lock_not_available THEN
        RETURN 'late';
    WHEN insufficient_privilege THEN
        RAISE WARNING 'what a transaction has left to the workers waits for rights that they lack: % (%)',
            left(_word::text, 1000), SQLERRM;
        RETURN 'late';
    WHEN transaction_rollback OR insufficient_resources OR object_not_in_prerequisite_state OR operator_intervention
        OR system_error OR internal_error
    THEN
        RAISE;
    WHEN OTHERS THEN
        RAISE WARNING 'what a transaction has left to the workers can''t be done, and is dropped: % (%)',
            left(_word::text, 1000), SQLERRM;
        RETURN 'done';
END $$;

-- Does what was left to workers, in its order, a bounded number; tells whether anything was done, and whether all that is
-- left waits for transactions of applications. One does it at a time, so that signals keep their order. What can't be
-- done yet holds up what is about the same run or key, which is passed over, and nothing else: of starts five may take
-- long in vain, because somebody has their id, and then the others are put off. Uses the primary key.
CREATE FUNCTION take_in_all(_now bigint, OUT done boolean, OUT held boolean) LANGUAGE plpgsql AS $$
DECLARE
    _left record;
    _after bigint := 0;
    _became text;
    _waiting text[] := '{}';
    _late integer := 0;
    _busy boolean := false;
    _news boolean := false;
    _done bigint[] := '{}';
BEGIN
    done := false;
    held := false;
    IF NOT pg_try_advisory_xact_lock(hashtextextended(current_schema(), 10)) THEN
        RETURN;  -- Whoever has it tells everybody when he is done.
    END IF;
    <<pages>>
    LOOP
        FOR _left IN
            SELECT r.id, r.word, r.word ->> 'what' AS what, s.about
            FROM recheck AS r
            CROSS JOIN LATERAL (
                SELECT coalesce(
                    r.word ->> 'run', (r.word #>> '{start,workflow}') || chr(31) || (r.word #>> '{start,unique,key}')
                ) AS about
            ) AS s
            WHERE r.word IS NOT NULL AND r.id > _after AND (s.about = ANY (_waiting)) IS NOT TRUE
            ORDER BY r.id LIMIT 1000
        LOOP
            _after := _left.id;
            CONTINUE WHEN _left.about = ANY (_waiting) OR (_late >= 5 AND _left.what = 'start');
            IF _left.what IN ('count', 'lane', 'progress') THEN
                _became := take_in(_now, _left.word);  -- Our own words.
            ELSE
                _became := take_in_said(_now, _left.word);
            END IF;
            IF _became = 'done' THEN
                _done := _done || _left.id;
                _news := _news OR _left.what NOT IN ('count', 'progress');
            ELSE
                _waiting := _waiting || _left.about;
                _late := _late + (_became = 'late')::integer;
                _busy := _busy OR _became = 'busy';
            END IF;
            EXIT pages WHEN cardinality(_done) = 200 OR _late = 10;
        END LOOP;
        EXIT WHEN NOT FOUND OR cardinality(_waiting) >= 1000;
    END LOOP;
    DELETE FROM recheck AS r WHERE r.id = ANY (_done);
    done := cardinality(_done) > 0;
    held := NOT (done OR _busy) AND cardinality(_waiting) > 0;
    -- Others may run, and watch for what came; and more may have come. But nobody looks more often than he would anyway
    -- for what transactions of applications hold, or since others have counted.
    IF NOT held AND (_news OR _busy OR cardinality(_waiting) > 0 OR cardinality(_done) = 200) THEN
        PERFORM tell_work(true);
    END IF;
END $$;

-- --- what is checked

-- The rules of this section are those of the Python client.

-- Raises PD020 unless a text can name a group, a session, a label or a unique key.
CREATE FUNCTION check_name(_what text, _name text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF _name IS NULL OR _name = '' THEN
        RAISE EXCEPTION '% is % where a text of 1 to 200 characters is needed', _what,
            CASE WHEN _name IS NULL THEN 'NULL' ELSE 'empty' END USING ERRCODE = 'PD020';
    ELSIF char_length(_name) > 200 THEN
        RAISE EXCEPTION '% has % characters, and 200 are the most: %…', _what, char_length(_name), left(_name, 20)
            USING ERRCODE = 'PD020';
    ELSIF _name ~ E'[\\x01-\\x1f\\x7f-\\x9f\\u2028\\u2029]' THEN
        RAISE EXCEPTION '% has a control character or a line break: %', _what, to_json(_name) USING ERRCODE = 'PD020';
    END IF;
END $$;

-- Raises PD020 unless a text can be an id, or the name of a workflow, a queue or a signal: without any of `_none`, and of
-- characters that can be seen, so that nobody takes one for another. Of what Unicode assigns, spaces but the usual one
-- (Zs), formats (Cf) and private characters (Co) can't, nor what never will be a character.
CREATE FUNCTION check_id(_what text, _name text, _none text DEFAULT '') RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    _hidden text := substring(_name FROM
        E'[\\u00a0\\u1680\\u2000-\\u200a\\u202f\\u205f\\u3000'
        || E'\\u00ad\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u180e\\u200b-\\u200f\\u202a-\\u202e'
        || E'\\u2060-\\u2064\\u2066-\\u206f\\ufeff\\ufff9-\\ufffb\\U000110bd\\U000110cd\\U00013430-\\U0001343f'
        || E'\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0001\\U000e0020-\\U000e007f'
        || E'\\ue000-\\uf8ff\\U000f0000-\\U0010ffff\\ufdd0-\\ufdef\\ufffe\\uffff]'
    );
BEGIN
    PERFORM check_name(_what, _name);
    IF _hidden <> '' THEN
        RAISE EXCEPTION '% has a character that can''t be seen, U+%: %', _what,
            upper(lpad(to_hex(ascii(_hidden)), 4, '0')), _name USING ERRCODE = 'PD020';
    ELSIF _none <> '' AND translate(_name, _none, '') <> _name THEN
        RAISE EXCEPTION '% can have none of these: % (it is %)', _what, _none, _name USING ERRCODE = 'PD020';
    END IF;
END $$;

-- JSON as it is kept. Raises PD020 for none, and PD021 for too much of it.
CREATE FUNCTION checked_json(_what text, _value jsonb, _most integer) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF _value IS NULL THEN
        RAISE EXCEPTION '% is NULL: give JSON; the JSON null is ''null''', _what USING ERRCODE = 'PD020';
    ELSIF octet_length(_value::text) > coalesce(_most, 1048576) THEN
        RAISE EXCEPTION
            '% takes % bytes as JSON, and the limit is %: keep it elsewhere and pass a reference to it, or give max_bytes',
            _what, octet_length(_value::text), coalesce(_most, 1048576) USING ERRCODE = 'PD021';
    END IF;
    RETURN _value::text;
END $$;

-- Raises PD020 unless a text can be the reason for which a run is cancelled.
CREATE FUNCTION check_reason(_reason text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF _reason IS NULL OR char_length(_reason) > 1000 THEN
        RAISE EXCEPTION 'a reason is a text of at most 1000 characters' USING ERRCODE = 'PD020';
    END IF;
END $$;

-- A duration of so many seconds in milliseconds, rounded up; raises PD020, with what was given, unless it can be.
CREATE FUNCTION checked_ms(_what text, _seconds numeric, _given text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF NOT _seconds BETWEEN 0 AND 3200000000 THEN
        RAISE EXCEPTION '% must lie between 0 and 100 years, not %', _what, _given USING ERRCODE = 'PD020';
    END IF;
    RETURN ceil(_seconds * 1000);
END $$;

-- The same for a time, in seconds since 1970: before the year 3000.
CREATE FUNCTION checked_at(_what text, _seconds numeric, _given text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF NOT (_seconds >= 0 AND _seconds < 32503680000) THEN
        RAISE EXCEPTION '% must lie between the years 1970 and 3000, not at %', _what, _given USING ERRCODE = 'PD020';
    END IF;
    RETURN ceil(_seconds * 1000);
END $$;

-- Raises PD020 where a start, of a JSON list, has a name or a time that can't be. Its input has to be JSON.
CREATE FUNCTION check_starts(_starts jsonb) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM
        check_id('the id', s.start ->> 'id'), check_id('the name of the workflow', s.start ->> 'workflow', '/#~[]'),
        check_id('the queue', s.start ->> 'queue', ','), (s.start ->> 'input')::json
    FROM jsonb_array_elements(_starts) AS s (start);
    PERFORM check_name(e.what, e.name)
    FROM jsonb_array_elements(_starts) AS s (start)
    CROSS JOIN LATERAL (
        VALUES
        ('the group', s.start ->> 'group', false), ('the session', s.start ->> 'session', false),
        ('the version', s.start ->> 'version', false), ('the batch', s.start ->> 'batch', false),
        ('the unique key', s.start #>> '{unique,key}', s.start ? 'unique')
    ) AS e (what, name, needed)
    WHERE e.needed OR e.name <> '';
    PERFORM check_name('a label', l.key), check_name(format('the value of label %s', l.key), l.value)
    FROM jsonb_array_elements(_starts) AS s (start) CROSS JOIN LATERAL jsonb_each_text(s.start -> 'labels') AS l;
    PERFORM
        checked_at('at', (s.start ->> 'at')::numeric / 1000, s.start ->> 'at'), checked_ms(e.what, e.ms::numeric / 1000, e.ms)
    FROM jsonb_array_elements(_starts) AS s (start)
    CROSS JOIN LATERAL (
        VALUES
        ('delay', s.start ->> 'delay'), ('timeout', s.start ->> 'timeout'), ('the period', s.start #>> '{unique,period}')
    ) AS e (what, ms);
END $$;

-- What one database is, among all: the server's own number and the database's.
CREATE FUNCTION here() RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
BEGIN
    RETURN (SELECT c.system_identifier FROM pg_control_system() AS c) || '/'
        || (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database());
EXCEPTION WHEN insufficient_privilege THEN
    RETURN current_database();
END $$;

-- Raises PD024 when somebody means another database.
CREATE FUNCTION check_here(_here text) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _here <> here() THEN
        RAISE EXCEPTION 'the connection leads to another database than the store''s: it is in %', current_database()
            USING ERRCODE = 'PD024';
    END IF;
END $$;

-- Raises PD020 where a transaction does not see what others have committed since it began.
CREATE FUNCTION check_isolation(_why text) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION '%: use READ COMMITTED, not %', _why, upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'PD020';
    END IF;
END $$;

-- --- what applications call

-- Makes runs within the caller's transaction, from a JSON list of starts.
CREATE FUNCTION start_later(
    _clock bigint, _starts jsonb, OUT ids text[], OUT existed boolean[], OUT same boolean[]
) LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM jsonb_array_elements(_starts) AS e WHERE e ? 'unique') THEN
        PERFORM check_isolation('a start with a unique key has to see who has the key');
    END IF;
    SELECT s.ids, s.existed, s.same INTO ids, existed, same
    FROM start_all(coalesce(_clock, clock_ms()), _starts, NULL, false, true) AS s;
    PERFORM tell_of(true, ids);  -- Until the commit they may get room.
END $$;

-- Whether a worker whose lease holds takes runs of a workflow from a queue, and of a version, if they are pinned to one.
-- Walks the workers.
CREATE FUNCTION is_served(_queue text, _workflow text, _version text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM worker AS w JOIN lease AS e ON e.worker = w.id
        WHERE e.until > clock_ms() AND _workflow = ANY (w.workflows) AND _queue = ANY (w.queues)
            AND (_version IS NULL OR has_version(w.versions, _workflow, _version))
    )
$$;

-- Makes a run within the caller's transaction and returns its id. `args` are the workflow's arguments by name. A start
-- whose id or unique key is there already returns that run's id. What holds for the workflow's starts in Python code
-- (queue, group, timeout …) is not known here.
CREATE FUNCTION start(
    workflow text,
    args jsonb DEFAULT '{}',
    id text DEFAULT NULL,
    queue text DEFAULT 'default',
    priority integer DEFAULT 0,
    delay interval DEFAULT NULL,
    at timestamptz DEFAULT NULL,
    timeout interval DEFAULT NULL,
    group_key text DEFAULT NULL,
    group_limit integer DEFAULT 1,
    group_keep boolean DEFAULT true,
    session_key text DEFAULT NULL,
    unique_key text DEFAULT NULL,
    on_conflict text DEFAULT 'existing',
    debounce interval DEFAULT NULL,
    throttle interval DEFAULT NULL,
    labels jsonb DEFAULT NULL,
    version text DEFAULT NULL,
    parent text DEFAULT NULL,
    max_crashes integer DEFAULT 5,
    max_bytes integer DEFAULT 1048576,
    known boolean DEFAULT false
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    _input text;
    _what text;
    _label record;
    _kind text := on_conflict;
    _period bigint := 0;
    _made record;
BEGIN
    PERFORM check_id('the name of the workflow', workflow, '/#~[]');
    _input := checked_json(format('the input of workflow %s', workflow), args, max_bytes);
    IF jsonb_typeof(args) <> 'object' THEN
        RAISE EXCEPTION 'the input of workflow % is the JSON %: give an object with the arguments by name, such as {"order": 7}',
            workflow, jsonb_typeof(args) USING ERRCODE = 'PD020';
    END IF;
    id := coalesce(id, left(replace(gen_random_uuid()::text, '-', ''), 24));
    queue := coalesce(queue, 'default');
    PERFORM check_id('the id', id), check_id('the queue', queue, ',');
    PERFORM check_name(e.what, e.name)
    FROM (VALUES
        ('the group', group_key), ('the session', session_key), ('the unique key', unique_key), ('the version', version)
    ) AS e (what, name)
    WHERE e.name IS NOT NULL;
    IF delay IS NOT NULL AND at IS NOT NULL THEN
        RAISE EXCEPTION 'give delay or at, not both' USING ERRCODE = 'PD020';
    ELSIF timeout <= interval '0' THEN
        RAISE EXCEPTION 'timeout must be longer than nothing, not %', timeout USING ERRCODE = 'PD020';
    ELSIF group_limit < 1 OR max_crashes < 1 THEN
        RAISE EXCEPTION 'group_limit and max_crashes are 1 or more' USING ERRCODE = 'PD020';
    ELSIF on_conflict IS NULL OR on_conflict NOT IN ('existing', 'replace') THEN
        RAISE EXCEPTION 'on_conflict is ''existing'' or ''replace'', not %; see also debounce and throttle',
            coalesce(quote_literal(on_conflict), 'NULL') USING ERRCODE = 'PD020';
    ELSIF num_nonnulls(debounce, throttle) + (on_conflict <> 'existing')::integer > 1 THEN
        RAISE EXCEPTION 'give one of on_conflict, debounce and throttle: each says what a second start does'
            USING ERRCODE = 'PD020';
    ELSIF unique_key IS NULL AND (on_conflict <> 'existing' OR num_nonnulls(debounce, throttle) > 0) THEN
        RAISE EXCEPTION 'on_conflict, debounce and throttle go with unique_key: they are about runs of one key'
            USING ERRCODE = 'PD020';
    ELSIF coalesce(debounce, throttle) <= interval '0' THEN
        RAISE EXCEPTION 'debounce and throttle must be longer than nothing' USING ERRCODE = 'PD020';
    ELSIF debounce IS NOT NULL AND num_nonnulls(delay, at) > 0 THEN
        RAISE EXCEPTION 'debounce says when the run begins: leave out delay and at' USING ERRCODE = 'PD020';
    ELSIF labels IS NOT NULL AND jsonb_typeof(labels) <> 'object' THEN
        RAISE EXCEPTION 'labels are a JSON object of texts, such as {"customer": "7"}' USING ERRCODE = 'PD020';
    ELSIF parent IS NOT NULL THEN
        PERFORM found(parent);
    END IF;
    IF labels IS NOT NULL THEN
        FOR _label IN SELECT e.key, e.value FROM jsonb_each(labels) AS e LOOP
            PERFORM check_name('a label', _label.key);
            IF jsonb_typeof(_label.value) <> 'string' THEN
                RAISE EXCEPTION 'label % is the JSON %: a label''s value is a text', _label.key, jsonb_typeof(_label.value)
                    USING ERRCODE = 'PD020';
            END IF;
            PERFORM check_name(format('the value of label %s', _label.key), _label.value #>> '{}');
        END LOOP;
        IF (SELECT count(*) FROM jsonb_object_keys(labels)) > 20 THEN
            RAISE EXCEPTION 'a run has at most 20 labels; larger data goes into its input' USING ERRCODE = 'PD020';
        END IF;
    END IF;
    IF NOT is_served(queue, workflow, version) THEN
        _what := format('workflow %s%s on queue %s', workflow, ' of version ' || version, queue);
        IF known THEN
            RAISE EXCEPTION 'no live worker serves %: is the name right, and does a worker run?', _what
                USING ERRCODE = 'PD023';
        END IF;
        -- Once for all starts of a transaction, of which there may be thousands.
        IF current_setting('pd.told', true) IS DISTINCT FROM _what THEN
            PERFORM set_config('pd.told', _what, true);
            RAISE WARNING 'no live worker serves %: its run waits for one', _what USING ERRCODE = 'PD023';
        END IF;
    END IF;
    IF debounce IS NOT NULL THEN
        _kind := 'debounce';
        _period := checked_ms('debounce', extract(epoch FROM debounce), debounce::text);
    ELSIF throttle IS NOT NULL THEN
        _kind := 'throttle';
        _period := checked_ms('throttle', extract(epoch FROM throttle), throttle::text);
    END IF;
    SELECT s.ids[1] AS id, s.same[1] AS same INTO _made
    FROM start_later(NULL, jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'id', id, 'workflow', workflow, 'queue', queue, 'input', _input, 'priority', coalesce(priority, 0),
        'delay', checked_ms('delay', extract(epoch FROM delay), delay::text),
        'at', checked_at('at', extract(epoch FROM at), at::text),
        'timeout', checked_ms('timeout', extract(epoch FROM timeout), timeout::text),
        'max_crashes', max_crashes, 'parent', parent, 'version', version, 'group', group_key, 'group_limit', group_limit, 'group_keep', group_keep, 'session', session_key,
        'labels', labels,
        'unique', CASE
            WHEN unique_key IS NOT NULL
            THEN jsonb_build_object('key', unique_key, 'on_conflict', _kind, 'period', _period)
        END
    )))) AS s;
    IF NOT _made.same THEN
        RAISE EXCEPTION 'run % exists with another workflow or input: an id names one piece of work for ever, use another one',
            quote_literal(id) USING ERRCODE = 'PD022';
    END IF;
    RETURN _made.id;
END $$;

-- Leaves a signal for a run to the workers. Raises PD001 or PD002 when the run can't take one.
CREATE FUNCTION signal_later(_run text, _name text, _body text, _id text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _found record;
BEGIN
    SELECT f.* INTO _found FROM found(_run) AS f;
    IF _found.state IN ('succeeded', 'failed', 'cancelled')
        AND NOT EXISTS (SELECT 1 FROM signal AS s WHERE s.run = _found.seq AND s.id = _id)
    THEN
        RAISE EXCEPTION 'run % is %: it takes no signals any more', _run, _found.state USING ERRCODE = 'PD002';
    END IF;
    INSERT INTO recheck (word)
    VALUES (jsonb_build_object('what', 'signal', 'id', _id, 'run', _run, 'name', _name, 'body', _body));
    PERFORM pg_notify(channel(), 'w');
END $$;

-- Leaves it to the workers to cancel a run; returns the state that it has now.
CREATE FUNCTION cancel_later(_run text, _reason text, _children boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    _state text;
BEGIN
    SELECT f.state INTO _state FROM found(_run) AS f;
    INSERT INTO recheck (word)
    VALUES (jsonb_build_object('what', 'cancel', 'run', _run, 'reason', _reason, 'children', _children));
    PERFORM pg_notify(channel(), 'w');
    RETURN _state;
END $$;

-- Sends a signal within the caller's transaction: workers deliver it as soon as that is committed. With an id it is
-- one signal, however often it is sent.
CREATE FUNCTION signal(
    run text, name text, value jsonb DEFAULT 'null', id text DEFAULT NULL, max_bytes integer DEFAULT 1048576
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
BEGIN
    PERFORM check_id('the id of the run', run), check_id('the name of the signal', name);
    id := coalesce(id, replace(gen_random_uuid()::text, '-', ''));
    PERFORM check_name('the id of the signal', id);
    PERFORM signal_later(run, name, checked_json(format('the value of signal %s', name), value, max_bytes), id);
END $$;

-- Cancels a run within the caller's transaction: workers do so as soon as that is committed.
CREATE FUNCTION cancel(run text, reason text DEFAULT 'cancelled by a client', children boolean DEFAULT true)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
BEGIN
    PERFORM check_id('the id of the run', run);
    PERFORM check_reason(reason);
    PERFORM cancel_later(run, reason, coalesce(children, true));
END $$;

-- --- what the Python client calls on a connection of the application: JSON in and out, as all drivers have it

CREATE FUNCTION start_within(_said text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    _all jsonb := _said;
BEGIN
    PERFORM check_here(_all ->> 'here');
    PERFORM check_starts(_all -> 'starts');
    RETURN (SELECT row_to_json(s)::text FROM start_later((_all ->> 'clock')::bigint, _all -> 'starts') AS s);
END $$;

CREATE FUNCTION signal_within(_said text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    _all jsonb := _said;
BEGIN
    PERFORM check_here(_all ->> 'here');
    PERFORM check_id('the name of the signal', _all ->> 'name');
    PERFORM check_name('the id of the signal', _all ->> 'id');
    IF (_all ->> 'body')::json IS NULL THEN
        RAISE EXCEPTION 'the value of signal % is not there', _all ->> 'name' USING ERRCODE = 'PD020';
    END IF;
    PERFORM signal_later(_all ->> 'run_id', _all ->> 'name', _all ->> 'body', _all ->> 'id');
    RETURN 'null';
END $$;

CREATE FUNCTION cancel_within(_said text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    _all jsonb := _said;
BEGIN
    PERFORM check_here(_all ->> 'here');
    PERFORM check_reason(_all ->> 'reason');
    RETURN to_json(cancel_later(_all ->> 'run_id', _all ->> 'reason', (_all ->> 'children')::boolean));
END $$;

-- Keeps the checkpoint of a step in the transaction that has its effect, if the claim owns the run still (else "lost")
-- and none was kept before it (else "kept"). Keeps the worker from being declared dead until the transaction ends, and
-- lets its exchanges go on. Of two transactions with one checkpoint the second waits here for the first. Where the commit
-- does not follow, since the process or its machine stands still, the server ends the session after about twice what is
-- left of the lease, at least five seconds, so that others go on with all that the worker has.
CREATE FUNCTION keep_within(_said text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    _all jsonb := _said;
    _new jsonb := _all -> 'checkpoint';
    _run bigint := (_all ->> 'ref')::bigint;
    _token bigint := (_all ->> 'token')::bigint;
    _crashed boolean;
    _now bigint := coalesce((_all ->> 'clock')::bigint, clock_ms());
    _most bigint;
BEGIN
    PERFORM check_here(_all ->> 'here');
    PERFORM check_isolation('a step that is kept in a transaction has to see whether its run is its worker''s still');
    PERFORM 1 FROM worker AS w WHERE w.id = _token >> 40 FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN '{"refused": "lost"}';
    END IF;
    SELECT l.crashes > 0 OR l.cut_off INTO _crashed FROM live AS l WHERE l.seq = _run AND l.token = _token AND l.state = 'running';
    IF NOT FOUND THEN
        RETURN '{"refused": "lost"}';
    END IF;
    INSERT INTO checkpoint AS c (run, position, key, kind, outcome, attempts, digest, at, started_at, saved_at, body)
    VALUES (
        _run, nextval('position'), _new ->> 'key', _new ->> 'kind', _new ->> 'outcome',
        coalesce((_new ->> 'attempts')::integer, 1), coalesce(_new ->> 'digest', ''), NULL,
        coalesce((_new ->> 'started_at')::bigint, 0), _now, _new ->> 'body'
    )
    ON CONFLICT (run, key) DO UPDATE SET
        position = excluded.position, kind = excluded.kind, outcome = excluded.outcome, attempts = excluded.attempts,
        digest = excluded.digest, at = excluded.at, started_at = excluded.started_at, saved_at = excluded.saved_at,
        body = excluded.body
    WHERE c.outcome = 'open';
    IF NOT FOUND THEN
        RETURN '{"refused": "kept"}';
    END IF;
    IF _crashed THEN
        INSERT INTO recheck (word) VALUES (jsonb_build_object('what', 'progress', 'run', _run, 'token', _token));
    END IF;
    SELECT greatest(5000, 2 * (e.until - _now)) INTO _most FROM lease AS e WHERE e.worker = _token >> 40;
    IF extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000
        NOT BETWEEN 1 AND _most
    THEN
        PERFORM set_config('idle_in_transaction_session_timeout', least(_most, 2147483647)::text, true);
    END IF;
    RETURN json_build_object('transaction', pg_current_xact_id()::text);
END $$;

-- Whether a transaction has ended. One that this server does not know of yet was another one's, before a failover.
CREATE FUNCTION is_over(_transaction text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN pg_xact_status(_transaction::xid8) IS DISTINCT FROM 'in progress';
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN true;
END $$;

-- A temporary table of the caller's must not be taken for one of ours where our rights hold. And sessions of applications
-- keep their plans for long: none may depend on how small tables were, or on what the session has set.
DO $$
DECLARE
    _function regprocedure;
BEGIN
    FOR _function IN
        SELECT p.oid::regprocedure FROM pg_proc AS p
        WHERE p.pronamespace = quote_ident(current_schema())::regnamespace AND p.prosecdef
    LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SET search_path = %I, pg_temp SET plan_cache_mode = force_generic_plan'
            ' SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off'
            ' SET jit = off',
            _function, current_schema()
        );
        IF _function <> 'here()'::regprocedure THEN
            EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', _function);
        END IF;
    END LOOP;
END $$;

INSERT INTO migration (version, name, oldest) VALUES (10, '0010_sql', 1);

COMMIT;
