-- How runs end, and what becomes of those that wait for them.

BEGIN;

-- What the ends of runs bring about: those who are parked for them wake, batches count them, and slots of groups and
-- seats of sessions go on. `_ties` has the bits of all of them together. Returns whether runs became ready. Locks those
-- that wake, the highest number first, and the batches in their order. Uses wait_run, batch_callback and primary keys.
CREATE FUNCTION follow(
    _now bigint, _runs bigint[], _ties integer, _groups bigint[], _sessions bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _woken integer := 0;
    _batches text[];
BEGIN
    IF _ties & 64 <> 0 THEN
        DELETE FROM wait AS w WHERE w.run = ANY (_runs);
    END IF;
    IF EXISTS (SELECT 1 FROM wait AS w WHERE w.what = 'run') THEN
        _woken := queue_up(_now, ARRAY(
            SELECT e.run FROM (
                SELECT w.run FROM run AS r JOIN wait AS w ON w.what = 'run' AND w.target = r.id
                WHERE r.seq = ANY (_runs) OFFSET 0
            ) AS e
            -- One that was woken already, and is put off or backs off, stays so.
            WHERE (SELECT l.state FROM live AS l WHERE l.seq = e.run) = 'waiting'
        ));
    END IF;
    IF _ties & 2 <> 0 THEN
        WITH counted AS (
            SELECT
                r.batch,
                count(*) FILTER (WHERE e.state = 'succeeded') AS succeeded,
                count(*) FILTER (WHERE e.state = 'failed') AS failed,
                count(*) FILTER (WHERE e.state = 'cancelled') AS cancelled
            FROM run AS r JOIN ended AS e ON e.seq = r.seq
            WHERE r.seq = ANY (_runs) AND r.batch IS NOT NULL
            GROUP BY r.batch
        ),
        locked AS (
            SELECT b.id FROM batch AS b WHERE b.id IN (SELECT c.batch FROM counted AS c) ORDER BY b.id FOR NO KEY UPDATE
        ),
        changed AS (
            UPDATE batch AS b SET
                succeeded = b.succeeded + c.succeeded, failed = b.failed + c.failed, cancelled = b.cancelled + c.cancelled
            FROM counted AS c JOIN locked AS k ON k.id = c.batch
            WHERE b.id = c.batch
            RETURNING b.id
        )
        SELECT array_agg(id) INTO _batches FROM changed;
        _woken := _woken + complete_batches(_now, _batches);
    END IF;
    -- What prune passed over because of these may go: of a batch whose callback lives, when that ends.
    IF _batches IS NOT NULL THEN
        WITH done AS (
            SELECT b.id, b.callback FROM batch AS b
            WHERE b.id = ANY (_batches) AND b.passed AND b.succeeded + b.failed + b.cancelled >= b.total
        ),
        living AS (
            UPDATE live AS l SET ties = l.ties | 128
            FROM done AS n JOIN run AS r ON r.id = n.callback WHERE l.seq = r.seq
            RETURNING n.id
        )
        INSERT INTO over (kept) SELECT 'batch:' || n.id FROM done AS n WHERE n.id NOT IN (SELECT i.id FROM living AS i)
        ON CONFLICT DO NOTHING;
    END IF;
    IF _ties & 128 <> 0 THEN
        INSERT INTO over (kept)
        SELECT 'run:' || r.id FROM run AS r WHERE r.seq = ANY (_runs)
        UNION ALL
        SELECT 'batch:' || b.id FROM run AS r JOIN batch AS b ON b.callback = r.id
        WHERE r.seq = ANY (_runs) AND b.passed AND b.succeeded + b.failed + b.cancelled >= b.total
        ON CONFLICT DO NOTHING;
    END IF;
    IF _ties & 32 <> 0 THEN
        _woken := _woken + next_of_schedules(_now, ARRAY(
            SELECT DISTINCT r.schedule FROM run AS r
            WHERE r.seq = ANY (_runs) AND r.schedule IS NOT NULL ORDER BY r.schedule
        ));
    END IF;
    IF _groups IS NOT NULL THEN
        PERFORM admit(_now, _groups);
    END IF;
    IF _sessions IS NOT NULL THEN
        PERFORM reseat(_now, _sessions);
    END IF;
    RETURN _woken > 0 OR _groups IS NOT NULL OR _sessions IS NOT NULL;
END $$;

-- Of schedules whose runs queue, lets the first live one begin, if it waits for those before it; returns how many. One at
-- a time looks after a schedule, so that of two ends at the same moment the second one sees the first. Uses
-- live_schedule.
CREATE FUNCTION next_of_schedules(_now bigint, _schedules text[]) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_schedule(e) FROM unnest(_schedules) AS e;
    RETURN let_begin(_now, ARRAY(
        SELECT f.seq FROM unnest(_schedules) AS s (name)
        CROSS JOIN LATERAL (
            SELECT l.seq, l.state FROM live AS l WHERE l.schedule = s.name ORDER BY l.seq LIMIT 1
        ) AS f
        WHERE f.state = 'waiting' AND EXISTS (SELECT 1 FROM wait AS w WHERE w.run = f.seq AND w.what = 'schedule')
    ));
END $$;

-- Held until the end of the transaction by who looks what is live of a schedule.
CREATE FUNCTION lock_schedule(_name text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || chr(31) || _name, 13))
$$;

-- Tells those who wait for ends how runs ended, with their results, if these fit into a notification (less than 8,000
-- bytes); else only that some have ended. Uses primary keys.
CREATE FUNCTION tell_ends(_runs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _told text;
BEGIN
    IF cardinality(_runs) <= 100 THEN
        SELECT json_agg(json_build_array(
            r.id, d.state, CASE WHEN s.short THEN d.body END, NOT s.short
        ))::text
        INTO _told
        FROM unnest(_runs) AS e (seq)
        JOIN ended AS d ON d.seq = e.seq
        JOIN run AS r ON r.seq = e.seq
        CROSS JOIN LATERAL (SELECT coalesce(octet_length(d.body), 0) < 4000 AS short) AS s;
    END IF;
    IF octet_length(_told) < 8000 THEN
        PERFORM pg_notify(c.channel, _told) FROM confidential AS c;
    ELSE
        PERFORM pg_notify(channel(), 'e');
    END IF;
END $$;

-- Ends runs that nobody owns, or whose owner is to find nothing of them any more, all in one way. Locks them, the highest
-- number first. Returns how many. Who waits for those that are `_removed` as well finds that out for himself. Uses the
-- primary key.
CREATE FUNCTION finish(
    _now bigint, _runs bigint[], _state text, _bodies text[], _cause text, _removed boolean DEFAULT false
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    _gone record;
BEGIN
    PERFORM 1 FROM live AS l WHERE l.seq = ANY (_runs) ORDER BY l.seq DESC FOR UPDATE;
    -- Looked up one by one: joined to what is removed, each would be compared with each.
    WITH gone AS MATERIALIZED (
        SELECT l.*, e.body, e.number FROM unnest(_runs, _bodies) WITH ORDINALITY AS e (seq, body, number)
        CROSS JOIN LATERAL (
            SELECT
                x.seq, x.place, x.settled, x.started_at, x.deadline, x.lane, x.attempt, x.crashes, x.ties, x.grp, x.session,
                x.slot
            FROM live AS x WHERE x.seq = e.seq OFFSET 0
        ) AS l
    ),
    removed AS (
        DELETE FROM live AS l WHERE l.seq = ANY (_runs)
    ),
    kept AS (
        INSERT INTO ended (
            seq, finish, finished_at, place, settled, started_at, deadline, lane, attempt, crashes, ties, state, cause, body
        )
        SELECT
            g.seq, nextval('finish'), _now, g.place, g.settled, g.started_at, g.deadline, g.lane, g.attempt, g.crashes,
            g.ties, _state, _cause, coalesce(g.body, _bodies[1])
        FROM (SELECT * FROM gone ORDER BY number) AS g
    ),
    counted AS (
        INSERT INTO tally AS t (lane, shard, succeeded, failed, cancelled)
        SELECT
            g.lane, shard(), 0, count(*) FILTER (WHERE _state = 'failed'), count(*) FILTER (WHERE _state = 'cancelled')
        FROM gone AS g GROUP BY g.lane ORDER BY g.lane
        ON CONFLICT (lane, shard) DO UPDATE SET
            failed = t.failed + excluded.failed, cancelled = t.cancelled + excluded.cancelled
    )
    SELECT
        count(*) AS runs, coalesce(bit_or(ties), 0) AS ties, array_agg(seq) AS seqs,
        array_agg(grp) FILTER (WHERE slot > 0) AS groups,
        array_agg(session) FILTER (WHERE session IS NOT NULL) AS sessions
    INTO _gone
    FROM gone;
    IF _gone.runs > 0 THEN
        PERFORM follow(_now, _gone.seqs, _gone.ties, _gone.groups, _gone.sessions);
        IF is_followed('ended') THEN
            IF _removed THEN
                PERFORM pg_notify(channel(), 'e');
            ELSE
                PERFORM tell_ends(_gone.seqs);
            END IF;
        END IF;
        PERFORM tell_status();
        PERFORM tell_work(_gone.ties & 1 <> 0);
    END IF;
    RETURN _gone.runs;
END $$;

-- Of runs and all that descends from them (or the runs alone), those that have not ended. Uses run_child.
CREATE FUNCTION tree(_roots bigint[], _children boolean) RETURNS bigint[] LANGUAGE sql STABLE AS $$
    WITH RECURSIVE tree (seq, id) AS (
        SELECT r.seq, r.id FROM run AS r WHERE r.seq = ANY (_roots)
        UNION
        SELECT c.seq, c.id FROM tree AS t JOIN run AS c ON c.parent = t.id WHERE _children
    )
    SELECT coalesce(array_agg(l.seq ORDER BY l.seq DESC), '{}')
    FROM tree AS t CROSS JOIN LATERAL (SELECT x.seq FROM live AS x WHERE x.seq = t.seq OFFSET 0) AS l
$$;

-- Ends runs and what descends from them where nobody owns them, and asks for the end of those that are running; the
-- first reason stays. Locks them, the highest number first: children come before their parents.
CREATE FUNCTION stop(_now bigint, _roots bigint[], _reason text, _children boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _runs bigint[] := tree(_roots, _children);
    _asked integer;
BEGIN
    IF cardinality(_runs) = 0 THEN
        RETURN;
    END IF;
    PERFORM 1 FROM live AS l WHERE l.seq = ANY (_runs) ORDER BY l.seq DESC FOR UPDATE;
    UPDATE live AS l SET cancelling = _reason, overdue = false
    WHERE l.seq = ANY (_runs) AND l.state = 'running' AND l.cancelling IS NULL;
    GET DIAGNOSTICS _asked = ROW_COUNT;
    PERFORM finish(
        _now, ARRAY(SELECT l.seq FROM live AS l WHERE l.seq = ANY (_runs) AND l.state <> 'running' ORDER BY l.seq),
        'cancelled', ARRAY[to_json(_reason)::text], NULL
    );
    IF _asked > 0 THEN
        PERFORM tell_status();
        PERFORM tell_work(true);
    END IF;
END $$;

-- Ends runs whose deadline has passed as failed where they are not running, asks for the end of the others, and cancels
-- what descends from either kind. Takes a bounded number, none that another one has in hand; returns how many. Uses
-- live_deadline. The error, the cause and the reasons are told by the caller, who knows how errors are written.
CREATE FUNCTION expire(
    _now bigint, _limit integer, _error text, _cause text, _reason text, _parent_reason text
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    _runs bigint[];
BEGIN
    _runs := ARRAY(
        SELECT l.seq FROM live AS l WHERE l.deadline <= _now AND l.cancelling IS NULL
        ORDER BY l.deadline LIMIT _limit FOR UPDATE SKIP LOCKED
    );
    IF cardinality(_runs) = 0 THEN
        RETURN 0;
    END IF;
    UPDATE live AS l SET cancelling = _reason, overdue = true WHERE l.seq = ANY (_runs) AND l.state = 'running';
    IF FOUND THEN
        PERFORM tell_work(true);
    END IF;
    PERFORM finish(
        _now, ARRAY(SELECT l.seq FROM live AS l WHERE l.seq = ANY (_runs) AND l.state <> 'running' ORDER BY l.seq),
        'failed', ARRAY[_error], _cause
    );
    PERFORM stop(_now, ARRAY(
        SELECT c.seq FROM run AS r JOIN run AS c ON c.parent = r.id WHERE r.seq = ANY (_runs)
    ), _parent_reason, true);
    RETURN cardinality(_runs);
END $$;

-- Of runs that came back while they are being cancelled, ends those that nobody may claim, to have their code clean up:
-- what a pause or its group keeps, and one that is pinned to a version where only others are served. A worker that is
-- leaving claims nothing any more. Uses primary keys; walks the workers, which are few, for a run that is pinned. Error
-- and cause of those whose deadline passed are told by the caller.
CREATE FUNCTION end_held(_now bigint, _runs bigint[], _leaving bigint, _overdue text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _held record;
BEGIN
    SELECT
        array_agg(l.seq ORDER BY l.seq) FILTER (WHERE l.overdue) AS late,
        array_agg(l.seq ORDER BY l.seq) FILTER (WHERE NOT l.overdue) AS stopped,
        array_agg(to_json(l.cancelling)::text ORDER BY l.seq) FILTER (WHERE NOT l.overdue) AS reasons
    INTO _held
    FROM live AS l JOIN lane AS a ON a.id = l.lane
    WHERE l.seq = ANY (_runs)
        AND l.state = 'queued'
        AND l.cancelling IS NOT NULL
        AND (
            l.held IN ('group', 'paused')
            OR cardinality(unpaused(ARRAY[l.lane])) = 0
            OR (
                a.version <> ''
                AND EXISTS (
                    SELECT 1 FROM worker AS w
                    WHERE w.id IS DISTINCT FROM _leaving AND a.queue = ANY (w.queues) AND a.workflow = ANY (w.workflows)
                )
                AND NOT EXISTS (
                    SELECT 1 FROM worker AS w WHERE w.id IS DISTINCT FROM _leaving AND l.lane = ANY (served(w.id))
                )
            )
        );
    IF _held.late IS NOT NULL THEN
        PERFORM finish(_now, _held.late, 'failed', ARRAY[_overdue[1]], _overdue[2]);
    END IF;
    IF _held.stopped IS NOT NULL THEN
        PERFORM finish(_now, _held.stopped, 'cancelled', _held.reasons, NULL);
    END IF;
END $$;

INSERT INTO migration (version, name, oldest) VALUES (4, '0004_ending', 1);

COMMIT;
