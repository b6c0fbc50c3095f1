-- What clients do to runs that exist: signals, cancelling, retrying, deleting, labels.

BEGIN;

-- The number and the state of a run; raises PD001 when there is none.
CREATE FUNCTION found(_id text, OUT seq bigint, OUT state text) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT r.seq, coalesce(l.state, d.state) INTO seq, state
    -- Looked up one after the other: a plan from when there were few runs would walk the primary keys else.
    FROM (SELECT x.seq FROM run AS x WHERE x.id = _id OFFSET 0) AS r
    LEFT JOIN LATERAL (SELECT x.state FROM live AS x WHERE x.seq = r.seq OFFSET 0) AS l ON true
    LEFT JOIN LATERAL (SELECT x.state FROM ended AS x WHERE x.seq = r.seq OFFSET 0) AS d ON true;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run % in this store', quote_literal(_id) USING ERRCODE = 'PD001';
    END IF;
END $$;

-- Keeps a signal behind those that are there, and wakes its run if that is parked for the name; one that was kept before
-- is left as it is, even if the run has ended since. Locks the run, as who ends or parks it does. Uses primary keys and
-- signal_id.
CREATE FUNCTION deliver(_clock bigint, _id text, _run_id text, _name text, _body text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _run bigint;
    _state text;
    _woken integer := 0;
BEGIN
    SELECT f.seq, f.state INTO _run, _state FROM found(_run_id) AS f;
    UPDATE live AS l SET ties = l.ties | 16 WHERE l.seq = _run RETURNING l.state INTO _state;
    IF EXISTS (SELECT 1 FROM signal AS s WHERE s.run = _run AND s.id = _id) THEN
        RETURN;
    END IF;
    IF _state NOT IN ('scheduled', 'queued', 'running', 'waiting') OR NOT EXISTS (SELECT 1 FROM live AS l WHERE l.seq = _run)
    THEN
        SELECT f.state INTO _state FROM found(_run_id) AS f;
        RAISE EXCEPTION 'run % has ended (%): it takes no signals any more', _run_id, _state USING ERRCODE = 'PD002';
    END IF;
    INSERT INTO signal (run, position, id, name, body)
    SELECT _run, coalesce(max(s.position), 0) + 1, _id, _name, _body FROM signal AS s WHERE s.run = _run;
    IF _state = 'waiting' AND EXISTS (
        SELECT 1 FROM wait AS w WHERE w.run = _run AND w.what = 'signal' AND w.target = _name
    ) THEN
        _woken := queue_up(_now, ARRAY[_run]);
    END IF;
    IF _woken > 0 THEN
        PERFORM tell_status();
    END IF;
    IF _woken > 0 OR _state = 'running' THEN
        PERFORM tell_of(_state = 'running', ARRAY[_run_id]);
    END IF;
END $$;

-- Ends a run and its descendants, or asks for it where one is running; returns the state that the run has now.
CREATE FUNCTION cancel(_clock bigint, _run_id text, _reason text, _children boolean) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _run bigint;
BEGIN
    SELECT f.seq INTO _run FROM found(_run_id) AS f;
    PERFORM stop(_now, ARRAY[_run], _reason, _children);
    RETURN (SELECT f.state FROM found(_run_id) AS f);
END $$;

-- Of runs that ended, those whose unique key another live run holds, or one before them in the list. Locks the keys until
-- the end of the transaction. Uses live_unique.
CREATE FUNCTION taken(_runs bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(k.lock)
    FROM (
        SELECT DISTINCT key_lock(l.workflow, r.unique_key) AS lock
        FROM run AS r JOIN lane AS l ON l.id = r.lane WHERE r.seq = ANY (_runs) AND r.unique_key IS NOT NULL
        ORDER BY 1
    ) AS k;
    RETURN ARRAY(
        SELECT r.seq
        FROM unnest(_runs) WITH ORDINALITY AS e (seq, place)
        JOIN run AS r ON r.seq = e.seq
        JOIN lane AS l ON l.id = r.lane
        LEFT JOIN ended AS d ON d.seq = r.seq
        WHERE r.unique_key IS NOT NULL
            AND (r.debounced IS NULL OR d.started_at IS NULL)
            AND (
                -- Not EXISTS: for that the whole table might be read into a hash.
                (
                    SELECT 1 FROM live AS o JOIN lane AS m ON m.id = o.lane
                    WHERE o.unique_key = r.unique_key AND m.workflow = l.workflow
                        AND (o.debounced IS NULL OR o.started_at IS NULL)
                    LIMIT 1
                ) IS NOT NULL
                OR EXISTS (
                    SELECT 1
                    FROM unnest(_runs) WITH ORDINALITY AS b (seq, place)
                    JOIN run AS o ON o.seq = b.seq
                    JOIN lane AS m ON m.id = o.lane
                    LEFT JOIN ended AS x ON x.seq = o.seq
                    WHERE b.place < e.place AND o.unique_key = r.unique_key AND m.workflow = l.workflow
                        AND (o.debounced IS NULL OR x.started_at IS NULL)
                )
            )
    );
END $$;

-- Queues runs that ended once more: attempt one up, no deadline, error checkpoints cleared; returns how many. Before that
-- they get the group and the session that the transaction which started them has left to the workers. Uses primary keys,
-- and walks what is left to workers.
CREATE FUNCTION again(_now bigint, _runs bigint[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    _back record;
    _word jsonb;
BEGIN
    FOR _word IN
        DELETE FROM recheck AS c
        WHERE c.word ->> 'what' = 'join'
            AND EXISTS (SELECT 1 FROM jsonb_array_elements_text(c.word -> 'runs') AS e WHERE e::bigint = ANY (_runs))
        RETURNING c.word
    LOOP
        PERFORM take_in(_now, _word);
    END LOOP;
    PERFORM clear_errors(_runs);
    WITH back AS (
        DELETE FROM ended AS d WHERE d.seq = ANY (_runs) RETURNING d.*
    ),
    counted AS (
        INSERT INTO tally AS t (lane, shard, succeeded, failed, cancelled)
        SELECT
            b.lane, shard(), -count(*) FILTER (WHERE b.state = 'succeeded'), -count(*) FILTER (WHERE b.state = 'failed'),
            -count(*) FILTER (WHERE b.state = 'cancelled')
        FROM back AS b GROUP BY b.lane ORDER BY b.lane
        ON CONFLICT (lane, shard) DO UPDATE SET
            succeeded = t.succeeded + excluded.succeeded, failed = t.failed + excluded.failed,
            cancelled = t.cancelled + excluded.cancelled
    ),
    rebatched AS (
        UPDATE batch AS x SET
            succeeded = x.succeeded - n.succeeded, failed = x.failed - n.failed, cancelled = x.cancelled - n.cancelled
        FROM (
            SELECT
                r.batch, count(*) FILTER (WHERE b.state = 'succeeded') AS succeeded,
                count(*) FILTER (WHERE b.state = 'failed') AS failed,
                count(*) FILTER (WHERE b.state = 'cancelled') AS cancelled
            FROM back AS b JOIN run AS r ON r.seq = b.seq WHERE r.batch IS NOT NULL GROUP BY r.batch
        ) AS n
        WHERE x.id = n.batch
    ),
    revived AS (
        INSERT INTO live (
            seq, place, settled, started_at, owner, lane, priority, attempt, max_crashes, ties, grp, session, slot, seat,
            keep, debounced, state, held, unique_key, schedule
        )
        SELECT
            b.seq, CASE WHEN r.grp IS NULL THEN coalesce(b.place, b.seq) ELSE b.place END, b.settled, b.started_at, CASE WHEN r.session IS NULL THEN 0 ELSE -1 END, b.lane, r.priority,
            b.attempt + 1, r.max_crashes, b.ties, r.grp, r.session,
            CASE WHEN r.grp IS NOT NULL THEN 2 END,
            CASE WHEN r.session IS NULL THEN NULL WHEN r.grp IS NULL THEN 2 ELSE 0 END,
            r.keep, r.debounced, 'queued',
            CASE WHEN r.grp IS NOT NULL THEN 'group' WHEN r.session IS NOT NULL THEN 'session' END,
            r.unique_key, r.schedule
        FROM back AS b JOIN run AS r ON r.seq = b.seq
        RETURNING grp, session
    )
    SELECT
        count(*) AS runs, array_agg(grp) FILTER (WHERE grp IS NOT NULL) AS groups,
        array_agg(session) FILTER (WHERE session IS NOT NULL) AS sessions
    INTO _back
    FROM revived;
    PERFORM nextval('rewind');
    IF _back.groups IS NOT NULL THEN
        PERFORM admit(_now, _back.groups);
    END IF;
    IF _back.sessions IS NOT NULL THEN
        PERFORM reseat(_now, _back.sessions);
    END IF;
    PERFORM tell_status();
    PERFORM tell_work();
    RETURN _back.runs;
END $$;

-- Queues a run that ended once more, with what succeeded, or what came before a checkpoint (and is not within it).
CREATE FUNCTION retry(_clock bigint, _run_id text, _from_key text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _run bigint;
    _state text;
    _position bigint;
BEGIN
    SELECT f.seq, f.state INTO _run, _state FROM found(_run_id) AS f;
    PERFORM 1 FROM ended AS d WHERE d.seq = _run FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % is %: it can be retried when it has ended', _run_id, _state USING ERRCODE = 'PD003';
    END IF;
    IF _state = 'succeeded' AND _from_key IS NULL THEN
        RAISE EXCEPTION 'run % has succeeded: name the checkpoint from which to do it again', _run_id
            USING ERRCODE = 'PD003';
    END IF;
    IF cardinality(taken(ARRAY[_run])) > 0 THEN
        RAISE EXCEPTION 'run % can''t be retried: its unique key is another live run''s; cancel that one first', _run_id
            USING ERRCODE = 'PD005';
    END IF;
    IF _from_key IS NOT NULL THEN
        SELECT c.position INTO _position FROM checkpoint AS c WHERE c.run = _run AND c.key = _from_key;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'run % has no checkpoint %', _run_id, quote_literal(_from_key) USING ERRCODE = 'PD004';
        END IF;
        DELETE FROM checkpoint AS c WHERE c.run = _run AND c.position >= _position;
        -- What the step called came before its own. '0' is next to '/'.
        DELETE FROM checkpoint AS c WHERE c.run = _run AND c.key >= _from_key || '/' AND c.key < _from_key || '0';
    END IF;
    PERFORM again(_now, ARRAY[_run]);
END $$;

-- Queues runs that ended once more; returns the ids of those that it does (or would, if it is a dry run). Left out are
-- those whose unique key is another live run's, and all but the first of those that share one.
CREATE FUNCTION retry_many(_clock bigint, _runs bigint[], _dry boolean) RETURNS text[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _there bigint[];
    _out bigint[];
BEGIN
    _there := ARRAY(SELECT d.seq FROM ended AS d WHERE d.seq = ANY (_runs) ORDER BY d.seq FOR UPDATE);
    _there := ARRAY(
        SELECT e.seq FROM unnest(_runs) WITH ORDINALITY AS e (seq, place) WHERE e.seq = ANY (_there) ORDER BY e.place
    );
    _out := taken(_there);
    _there := ARRAY(
        SELECT e.seq FROM unnest(_there) WITH ORDINALITY AS e (seq, place) WHERE e.seq <> ALL (_out) ORDER BY e.place
    );
    IF NOT _dry THEN
        PERFORM again(_now, _there);
    END IF;
    RETURN ARRAY(
        SELECT r.id FROM unnest(_there) WITH ORDINALITY AS e (seq, place) JOIN run AS r ON r.seq = e.seq ORDER BY e.place
    );
END $$;

-- Removes runs that have ended, with all that is kept of them; those that are parked for one of them go on. Returns how
-- many. Uses primary keys and wait_run.
CREATE FUNCTION erase(_now bigint, _runs bigint[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    _gone record;
    _ids text[];
    _left bigint[];
BEGIN
    WITH facts AS (
        DELETE FROM run AS r WHERE r.seq = ANY (_runs) RETURNING r.id, r.lane, r.seq, r.grp, r.session, r.batch
    ),
    ends AS (
        DELETE FROM ended AS d WHERE d.seq = ANY (_runs) RETURNING d.lane, d.state
    ),
    counted AS (
        INSERT INTO tally AS t (lane, shard, runs, succeeded, failed, cancelled)
        SELECT
            g.lane, shard(), -count(*) FILTER (WHERE g.state IS NULL), -count(*) FILTER (WHERE g.state = 'succeeded'),
            -count(*) FILTER (WHERE g.state = 'failed'), -count(*) FILTER (WHERE g.state = 'cancelled')
        -- Not joined: without hashes and sorts that would compare each with each.
        FROM (SELECT f.lane, NULL AS state FROM facts AS f UNION ALL SELECT e.lane, e.state FROM ends AS e) AS g
        GROUP BY g.lane ORDER BY g.lane
        ON CONFLICT (lane, shard) DO UPDATE SET
            runs = t.runs + excluded.runs, succeeded = t.succeeded + excluded.succeeded,
            failed = t.failed + excluded.failed, cancelled = t.cancelled + excluded.cancelled
    )
    SELECT
        count(*)::integer AS runs, array_agg(id) AS ids,
        array_agg(DISTINCT grp) FILTER (WHERE grp IS NOT NULL) AS groups,
        array_agg(DISTINCT session) FILTER (WHERE session IS NOT NULL) AS sessions,
        array_agg(DISTINCT batch) FILTER (WHERE batch IS NOT NULL) AS batches
    INTO _gone
    FROM facts;
    _ids := _gone.ids;
    IF EXISTS (SELECT 1 FROM wait AS w WHERE w.what = 'run') THEN
        PERFORM queue_up(_now, ARRAY(
            SELECT w.run FROM unnest(_ids) AS e (id) JOIN wait AS w ON w.what = 'run' AND w.target = e.id
            JOIN live AS l ON l.seq = w.run AND l.state = 'waiting'
        ));
        PERFORM tell_work(true);
    END IF;
    DELETE FROM checkpoint AS c WHERE c.run = ANY (_runs);
    DELETE FROM signal AS s WHERE s.run = ANY (_runs);
    DELETE FROM wait AS w WHERE w.run = ANY (_runs);
    DELETE FROM status AS s WHERE s.run = ANY (_runs);
    DELETE FROM label AS b WHERE b.run = ANY (_runs);
    UPDATE schedule AS s SET last_run = NULL WHERE s.last_run = ANY (_ids);
    -- A batch goes with the last of its runs and its callback.
    DELETE FROM batch AS b
    WHERE (b.id = ANY (_gone.batches) OR b.callback = ANY (_ids))
        AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.batch = b.id)
        AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = b.callback);
    -- A group and a session go with the last of their runs; not while somebody is about to make another one, and not if
    -- somebody has: looks again once they are locked.
    _left := ARRAY(SELECT g.id FROM grp AS g WHERE g.id = ANY (_gone.groups) ORDER BY g.id FOR UPDATE SKIP LOCKED);
    DELETE FROM grp AS g WHERE g.id = ANY (_left) AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.grp = g.id);
    _left := ARRAY(
        SELECT s.id FROM session AS s
        WHERE s.id = ANY (_gone.sessions) AND s.owner IS NULL ORDER BY s.id FOR UPDATE SKIP LOCKED
    );
    DELETE FROM session AS s WHERE s.id = ANY (_left) AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.session = s.id);
    RETURN _gone.runs;
END $$;

-- Removes a run and its descendants; returns how many. What has not ended is cancelled first, so that all that waits for
-- its end goes on; raises PD003 for such unless forced. Locks the workers that own some of them, so that nothing that
-- these say, or keep in a transaction of the application, comes in between, and the runs, live ones and then ended ones, so
-- that they are not retried; looks again until what it found is what it locked. Uses run_child and primary keys.
CREATE FUNCTION remove(_clock bigint, _run_id text, _force boolean) RETURNS integer
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := coalesce(_clock, clock_ms());
    _run bigint;
    _found record;
    _was record;
    _locked bigint;
    _ends bigint;
BEGIN
    LOOP
        SELECT f.seq INTO _run FROM found(_run_id) AS f;
        WITH RECURSIVE tree (seq, id) AS (
            SELECT r.seq, r.id FROM run AS r WHERE r.seq = _run
            UNION
            SELECT c.seq, c.id FROM tree AS t JOIN run AS c ON c.parent = t.id
        )
        SELECT
            array_agg(t.seq ORDER BY t.seq) AS family,
            coalesce(array_agg(l.seq ORDER BY l.seq DESC) FILTER (WHERE l.seq IS NOT NULL), '{}') AS live,
            coalesce(array_agg(d.seq ORDER BY d.seq) FILTER (WHERE d.seq IS NOT NULL), '{}') AS ended,
            array_agg(DISTINCT l.worker) FILTER (WHERE l.state = 'running') AS workers
        INTO _found
        FROM tree AS t
        LEFT JOIN LATERAL (SELECT x.seq, x.state, x.worker FROM live AS x WHERE x.seq = t.seq OFFSET 0) AS l ON true
        LEFT JOIN ended AS d ON d.seq = t.seq;
        IF cardinality(_found.live) > 0 AND NOT _force THEN
            RAISE EXCEPTION '% of the % runs that go with run % have not ended: cancel it first, or force',
                cardinality(_found.live), cardinality(_found.family), _run_id USING ERRCODE = 'PD003';
        END IF;
        EXIT WHEN _found IS NOT DISTINCT FROM _was AND _locked = cardinality(_found.live) + cardinality(_found.ended);
        _was := _found;
        PERFORM 1 FROM worker AS w WHERE w.id = ANY (_found.workers) ORDER BY w.id FOR UPDATE;
        PERFORM 1 FROM live AS l WHERE l.seq = ANY (_found.live) ORDER BY l.seq DESC FOR UPDATE;
        GET DIAGNOSTICS _locked = ROW_COUNT;
        PERFORM 1 FROM ended AS d WHERE d.seq = ANY (_found.ended) ORDER BY d.seq FOR UPDATE;
        GET DIAGNOSTICS _ends = ROW_COUNT;
        _locked := _locked + _ends;
    END LOOP;
    PERFORM finish(_now, _found.live, 'cancelled', ARRAY['"deleted"'], NULL, true);
    RETURN erase(_now, _found.family);
END $$;

-- Sets labels of a run; an empty value removes one. Locks the run, as who deletes it or sets others does. Uses primary
-- keys.
CREATE FUNCTION set_labels(_run_id text, _labels json, _most bigint) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _run bigint;
    _number bigint;
BEGIN
    LOOP
        SELECT f.seq INTO _run FROM found(_run_id) AS f;
        UPDATE live AS l SET ties = l.ties | 8 WHERE l.seq = _run;
        EXIT WHEN FOUND;
        UPDATE ended AS d SET ties = d.ties | 8 WHERE d.seq = _run;
        EXIT WHEN FOUND;
    END LOOP;
    INSERT INTO label (run, key, value)
    SELECT _run, e.key, e.value FROM json_each_text(_labels) AS e WHERE e.value <> ''
    ON CONFLICT (run, key) DO UPDATE SET value = excluded.value;
    DELETE FROM label AS b USING json_each_text(_labels) AS e WHERE b.run = _run AND b.key = e.key AND e.value = '';
    SELECT count(*) INTO _number FROM label AS b WHERE b.run = _run;
    IF _number > _most THEN
        RAISE EXCEPTION 'run % would have % labels, and % is the most; remove some first', _run_id, _number, _most
            USING ERRCODE = 'PD010';
    END IF;
END $$;

-- Of runs that have ended, passes over those that something keeps: a parent that lives, or a batch of which some run, or
-- the callback, has not ended. Says so at what keeps them, so that it tells when that is over (see follow), and locks it:
-- else it might have come to an end meanwhile. What somebody has in hand is left for the next time. Returns how many were
-- passed over, and those that may go. Uses primary keys, ids, and batch_callback.
CREATE FUNCTION pass_over(_runs bigint[], OUT passed integer, OUT free bigint[]) LANGUAGE plpgsql AS $$
DECLARE
    _living text[];
    _open text[];
    _locked text[];
BEGIN
    WITH locked AS MATERIALIZED (
        SELECT l.seq
        FROM (
            SELECT p.seq FROM run AS r JOIN run AS p ON p.id = r.parent WHERE r.seq = ANY (_runs)
            UNION
            SELECT c.seq FROM run AS r JOIN batch AS b ON b.id = r.batch JOIN run AS c ON c.id = b.callback
            WHERE r.seq = ANY (_runs)
            ORDER BY seq DESC
        ) AS e
        CROSS JOIN LATERAL (
            SELECT x.seq FROM live AS x WHERE x.seq = e.seq LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
        ) AS l
    ),
    marked AS (
        UPDATE live AS l SET ties = l.ties | 128
        FROM locked AS k
        WHERE l.seq = k.seq AND l.seq = ANY (ARRAY(SELECT m.seq FROM locked AS m)) AND l.ties & 128 = 0
    )
    SELECT array_agg(r.id) INTO _living FROM locked AS k JOIN run AS r ON r.seq = k.seq;
    WITH locked AS MATERIALIZED (
        SELECT
            b.id, coalesce(b.succeeded + b.failed + b.cancelled < b.total OR b.callback = ANY (_living), false) AS open
        FROM batch AS b
        WHERE b.id = ANY (ARRAY(SELECT r.batch FROM run AS r WHERE r.seq = ANY (_runs)))
        ORDER BY b.id FOR NO KEY UPDATE SKIP LOCKED
    ),
    marked AS (
        UPDATE batch AS b SET passed = true FROM locked AS k WHERE b.id = k.id AND k.open AND NOT b.passed
    )
    SELECT array_agg(k.id), array_agg(k.id) FILTER (WHERE k.open) INTO _locked, _open FROM locked AS k;
    UPDATE ended AS d SET kept = CASE WHEN r.parent = ANY (_living) THEN 'run:' || r.parent ELSE 'batch:' || r.batch END
    FROM run AS r
    WHERE d.seq = ANY (_runs) AND r.seq = d.seq AND d.kept IS NULL AND (r.parent = ANY (_living) OR r.batch = ANY (_open));
    GET DIAGNOSTICS passed = ROW_COUNT;
    free := ARRAY(
        SELECT r.seq FROM run AS r JOIN ended AS d ON d.seq = r.seq
        WHERE r.seq = ANY (_runs) AND d.kept IS NULL
            AND NOT EXISTS (SELECT 1 FROM run AS p JOIN live AS l ON l.seq = p.seq WHERE p.id = r.parent)
            AND (
                r.batch IS NULL OR r.batch = ANY (_locked) OR NOT EXISTS (SELECT 1 FROM batch AS b WHERE b.id = r.batch)
            )
            AND NOT EXISTS (
                SELECT 1 FROM batch AS b JOIN run AS c ON c.id = b.callback JOIN live AS l ON l.seq = c.seq
                WHERE b.id = r.batch
            )
    );
END $$;

-- Removes runs that ended, as they were told (by number and place in the order of finishing), but for those that something
-- keeps: these are passed over until it has ended. `_keepers` have ended, `_empty` are batches that have nothing. Returns
-- how many runs were removed, and whether anything changed. Uses ended_kept.
CREATE FUNCTION prune(
    _clock bigint, _runs bigint[], _finishes bigint[], _keepers text[], _empty text[],
    OUT removed integer, OUT changed boolean
) LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _passed record;
    _there bigint[];
    _back integer := 0;
    _emptied integer := 0;
BEGIN
    IF cardinality(_keepers) > 0 THEN
        -- First: what is told once more from now on is for the next one.
        DELETE FROM over AS o WHERE o.kept = ANY (_keepers);
        UPDATE ended AS d SET kept = NULL WHERE d.kept = ANY (_keepers);
        GET DIAGNOSTICS _back = ROW_COUNT;
    END IF;
    IF cardinality(_empty) > 0 THEN
        DELETE FROM batch AS b WHERE b.id = ANY (_empty) AND b.empty_since IS NOT NULL AND b.total = 0;
        GET DIAGNOSTICS _emptied = ROW_COUNT;
    END IF;
    SELECT p.* INTO _passed FROM pass_over(_runs) AS p;
    _there := ARRAY(
        SELECT d.seq
        FROM (SELECT u.seq, u.finish FROM unnest(_runs, _finishes) AS u (seq, finish) ORDER BY u.seq) AS e
        CROSS JOIN LATERAL (
            SELECT x.seq FROM ended AS x
            WHERE x.seq = e.seq AND x.finish = e.finish AND x.kept IS NULL LIMIT 1 FOR UPDATE SKIP LOCKED
        ) AS d
        WHERE e.seq = ANY (_passed.free)
    );
    removed := erase(coalesce(_clock, clock_ms()), _there);
    changed := removed + _passed.passed + _back + _emptied > 0;
END $$;

INSERT INTO migration (version, name, oldest) VALUES (7, '0007_controlling', 1);

COMMIT;
