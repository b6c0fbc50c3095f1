-- What holds runs back, and lets them through: groups, sessions. These functions lock a group's or a session's row only
-- if nobody else has it, so that they never wait for it; whoever had it in hand is followed by a look of the next exchange,
-- for which workers are woken. Runs are claimed, parked and ended without that row: an update here says once more on the row
-- that it changes what it was decided from, so that it leaves alone what was changed by those that it waited for.

BEGIN;

-- The store's clock, in milliseconds. As volatile as what it reads, else it would be called instead of being put in place.
CREATE FUNCTION clock_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- The shard of tallies that this connection writes.
CREATE FUNCTION shard() RETURNS smallint LANGUAGE sql STABLE AS $$ SELECT (pg_backend_pid() % 16)::smallint $$;

-- The channel on which those who listen are told of changes in this schema.
CREATE FUNCTION channel() RETURNS text LANGUAGE sql STABLE AS
$$ SELECT 'perdure_' || substr(md5(current_schema()), 1, 16) $$;

-- Whether a version of a workflow is among those of a worker.
CREATE FUNCTION has_version(_versions text[], _workflow text, _version text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM generate_series(1, cardinality(_versions), 2) AS i
        WHERE _versions[i] = _workflow AND _versions[i + 1] = _version
    )
$$;

-- Tells workers that something may be there for them: for those that serve one of the lanes, if any are named, and have
-- room for it, unless it is for what they run already, or for later. Lanes are looked for by what they are called: they may
-- have been made just now. Reads live_owned.
CREATE FUNCTION tell_work(
    _anyway boolean DEFAULT false, _queues text[] DEFAULT NULL, _workflows text[] DEFAULT NULL, _versions text[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (_anyway AND _queues IS NULL) OR EXISTS (
        SELECT 1 FROM worker AS w
        -- What costs least comes first: it is enough for most workers.
        WHERE CASE
            WHEN _queues IS NULL OR (
                _queues && w.queues
                AND _workflows && w.workflows
                AND (
                    _versions = '{""}'
                    OR EXISTS (
                        SELECT 1 FROM unnest(_queues, _workflows, _versions) AS e (queue, workflow, version)
                        WHERE e.queue = ANY (w.queues) AND e.workflow = ANY (w.workflows)
                            AND (e.version = '' OR has_version(w.versions, e.workflow, e.version))
                    )
                )
            )
            THEN _anyway OR w.concurrency > (SELECT count(*) FROM live AS l WHERE l.worker = w.id AND l.state = 'running')
        END
    ) OR NOT EXISTS (SELECT 1 FROM worker) THEN
        PERFORM pg_notify(channel(), 'w');
    END IF;
END $$;

-- Whether anybody waits for ends, or follows progress. Walks the listeners of the topic.
CREATE FUNCTION is_followed(_topic text) RETURNS boolean LANGUAGE sql AS
$$ SELECT EXISTS (SELECT 1 FROM listener AS l WHERE l.topic = _topic AND l.until > clock_ms()) $$;

-- Tells those who follow progress, if there are any.
CREATE FUNCTION tell_status() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF is_followed('status') THEN
        PERFORM pg_notify(channel(), 's');
    END IF;
END $$;

-- Gives the seats of sessions to the first ones of their ready runs, at most 64; the others are in the line. So
-- ownership changes at a cost that does not depend on how many runs a session has. Uses live_seat.
CREATE FUNCTION reseat(_now bigint, _sessions bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _session record;
    _id bigint;
BEGIN
    FOR _id IN SELECT DISTINCT e FROM unnest(_sessions) AS e WHERE e IS NOT NULL LOOP
        SELECT s.owner, s.idle_until INTO _session FROM session AS s WHERE s.id = _id FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            INSERT INTO recheck (session) SELECT s.id FROM session AS s WHERE s.id = _id;
            IF FOUND THEN
                PERFORM pg_notify(channel(), 'w');
            END IF;
            CONTINUE;
        END IF;
        WITH first AS (
            (
                SELECT l.seq, l.priority, l.place, l.seat, l.owner FROM live AS l
                WHERE l.session = _id AND l.seat = 1
            )
            UNION ALL
            (
                SELECT l.seq, l.priority, l.place, l.seat, l.owner FROM live AS l
                WHERE l.session = _id AND l.seat = 2
                ORDER BY l.priority, l.place LIMIT 64
            )
        ),
        ranked AS (
            SELECT f.*, row_number() OVER (ORDER BY f.priority, f.place, f.seq) <= 64 AS has FROM first AS f
        )
        UPDATE live AS l SET
            seat = CASE WHEN r.has THEN 1 ELSE 2 END,
            held = CASE WHEN r.has THEN NULL ELSE 'session' END,
            owner = coalesce(_session.owner, -1)
        FROM ranked AS r
        WHERE l.seq = r.seq AND l.seat = r.seat
            AND (r.has <> (r.seat = 1) OR (r.has AND r.owner <> coalesce(_session.owner, -1)));
        IF _session.owner IS NOT NULL THEN
            IF EXISTS (SELECT 1 FROM live AS l WHERE l.session = _id AND l.seat IS NOT NULL) THEN
                UPDATE session AS s SET idle_until = NULL WHERE s.id = _id AND s.idle_until IS NOT NULL;
            ELSE
                UPDATE session AS s SET
                    idle_until = _now + coalesce((SELECT w.session_idle FROM worker AS w WHERE w.id = s.owner), 0)
                WHERE s.id = _id AND s.idle_until IS NULL;
            END IF;
        ELSE
            UPDATE session AS s SET idle_until = NULL WHERE s.id = _id AND s.idle_until IS NOT NULL;
            IF NOT EXISTS (SELECT 1 FROM run AS r WHERE r.session = _id) THEN
                -- Not while somebody is about to make another run of it, and not if somebody has: a look once it is locked.
                PERFORM 1 FROM session AS s WHERE s.id = _id FOR UPDATE SKIP LOCKED;
                IF FOUND THEN
                    DELETE FROM session AS s
                    WHERE s.id = _id AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.session = _id);
                END IF;
            END IF;
        END IF;
    END LOOP;
END $$;

-- Gives the slots of groups to the first ones of their runs that have not begun, or keep no slot while they wait. What
-- has begun and keeps its slot has it, and goes on when it wakes, unless as many as the limit allows are running. Uses
-- live_holder and live_line, of the line no more than is let through. Of the runs that join just now those that need not
-- wait in the line are in the order of their lanes where they were made; what comes from the line goes behind all others:
-- so groups take turns. `_set` says that a limit or a pause was set: a pause sends back into the line what has not begun, and
-- what comes back later keeps its slot, unless there are more of these than the limit. All groups are looked at by the same
-- statements.
CREATE FUNCTION admit(
    _now bigint, _groups bigint[], _joined bigint[] DEFAULT NULL, _set boolean DEFAULT false
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _open bigint[];
    _held record;
    _again bigint[];
    _seated bigint[];
    _sessions bigint[];
BEGIN
    SELECT array_agg(g.id) AS free, count(g.id) < (SELECT count(DISTINCT e) FROM unnest(_groups) AS e) AS busy INTO _held
    FROM (SELECT g.id FROM grp AS g WHERE g.id = ANY (_groups) FOR NO KEY UPDATE SKIP LOCKED) AS g;
    _open := _held.free;
    IF _held.busy THEN
        INSERT INTO recheck (grp)
        SELECT g.id FROM grp AS g WHERE g.id = ANY (_groups) AND g.id NOT IN (SELECT unnest(_open));
        IF FOUND THEN
            PERFORM pg_notify(channel(), 'w');
        END IF;
    END IF;
    WHILE _open IS NOT NULL LOOP
        -- Whose slots are beyond dispute: how many of them run, how many want to go on. Counted as of the same moment at
        -- which the others are ranked, else one that is claimed in between would be neither.
        WITH looked AS MATERIALIZED (
            SELECT g.id, g.paused, w.*
            FROM grp AS g
            CROSS JOIN LATERAL (
                WITH holders AS MATERIALIZED (
                    SELECT
                        l.seq, l.priority, l.slot, l.place, l.state, l.held, l.session,
                        l.state = 'running' OR (l.started_at IS NOT NULL AND l.keep) AS keeps
                    FROM live AS l
                    WHERE l.grp = g.id AND l.slot = 1
                ),
                counted AS MATERIALIZED (
                    SELECT
                        count(*) FILTER (WHERE h.keeps AND h.state = 'queued') AS woken,
                        coalesce(bool_or(h.keeps AND h.session IS NOT NULL), false) AS seated,
                        count(*) > g.most AS over,
                        CASE
                            WHEN g.paused THEN 0 ELSE greatest(0, g.most - count(*) FILTER (WHERE h.keeps))
                        END AS free
                    FROM holders AS h
                ),
                first AS (
                    (
                        SELECT h.seq, h.priority, h.slot, h.place, h.held FROM holders AS h WHERE NOT h.keeps
                    )
                    UNION ALL
                    (
                        SELECT l.seq, l.priority, l.slot, l.place, l.held FROM live AS l
                        WHERE l.grp = g.id AND l.slot = 2
                        ORDER BY l.priority, l.seq LIMIT (SELECT c.free FROM counted AS c)
                    )
                ),
                ranked AS (
                    SELECT f.*, row_number() OVER (ORDER BY f.priority, f.seq) AS rank FROM first AS f
                )
                SELECT c.woken, c.seated, r.seq, r.slot, r.place, r.rank, r.rank <= c.free AS has
                FROM counted AS c
                LEFT JOIN ranked AS r ON CASE
                    WHEN r.rank <= c.free THEN r.slot = 2 OR r.held = 'paused'
                    ELSE r.slot = 1 AND (_set OR NOT g.paused OR c.over)
                END
            ) AS w
            WHERE g.id = ANY (_open)
        ),
        changed AS (
            UPDATE live AS l SET
                slot = CASE WHEN w.has THEN 1 ELSE 2 END,
                state = 'queued',
                wake_at = NULL,
                held = CASE WHEN NOT w.has THEN 'group' WHEN l.session IS NOT NULL THEN 'session' END,
                seat = CASE WHEN l.session IS NULL THEN NULL WHEN w.has THEN 2 ELSE 0 END,
                place = coalesce(
                    l.place,
                    CASE WHEN NOT w.has THEN NULL WHEN l.seq IN (SELECT unnest(_joined)) THEN l.seq ELSE nextval('place') END
                )
            FROM (SELECT * FROM looked WHERE seq IS NOT NULL ORDER BY rank, id) AS w
            WHERE l.seq = w.seq AND l.seq = ANY (ARRAY(SELECT k.seq FROM looked AS k)) AND l.slot = w.slot
                AND (l.slot = 2 OR (l.state <> 'running' AND (l.started_at IS NULL OR NOT l.keep)))
            RETURNING w.id, l.session, w.has AND w.place IS NOT NULL AS back
        )
        SELECT
            array_agg(x.id) FILTER (WHERE x.skipped) AS skipped,
            array_agg(x.id) FILTER (WHERE NOT x.skipped AND x.more) AS more,
            array_agg(x.id) FILTER (WHERE x.more AND x.seated) AS seated,
            bool_or(x.back OR x.woken > 0) AS back,
            (SELECT array_agg(c.session) FROM changed AS c WHERE c.session IS NOT NULL) AS sessions
        INTO _held
        FROM (
            SELECT
                e.id, sum(e.runs) <> 0 AS skipped, max(e.woken) > 0 OR bool_or(e.paused) AS more, bool_or(e.seated) AS seated,
                max(e.woken) AS woken, bool_or(e.back) AS back
            FROM (
                SELECT k.id, k.paused, k.woken, k.seated, (k.seq IS NOT NULL)::integer AS runs, false AS back
                FROM looked AS k
                UNION ALL
                SELECT c.id, false, 0, false, -1, c.back FROM changed AS c
            ) AS e
            GROUP BY e.id
        ) AS x;
        _sessions := _sessions || _held.sessions;
        _seated := _seated || _held.seated;
        IF _held.back THEN
            PERFORM nextval('rewind');
        END IF;
        -- What was claimed meanwhile keeps its slot. Another one may just have been given that: nobody has seen it yet,
        -- so the next round sends it back into the line. Each round follows a change that somebody else committed.
        _open := _held.skipped;
        CONTINUE WHEN _held.more IS NULL;
        WITH woken AS MATERIALIZED (
            SELECT g.id, w.*
            FROM grp AS g
            CROSS JOIN LATERAL (
                SELECT
                    l.seq, l.held AS was,
                    CASE
                        WHEN g.paused THEN 'paused'
                        WHEN row_number() OVER (ORDER BY l.priority, l.seq) > g.most - (
                            SELECT count(*) FROM live AS r WHERE r.grp = g.id AND r.slot = 1 AND r.state = 'running'
                        ) THEN 'group'
                        WHEN l.session IS NULL THEN NULL
                        WHEN l.held IS NULL OR l.held = 'session' THEN l.held
                        ELSE 'session'
                    END AS held
                FROM live AS l
                WHERE l.grp = g.id AND l.slot = 1 AND l.state = 'queued'
                    AND (g.paused OR (l.started_at IS NOT NULL AND l.keep))
            ) AS w
            WHERE g.id = ANY (_held.more)
        ),
        changed AS (
            UPDATE live AS l SET
                held = w.held,
                seat = CASE WHEN l.session IS NULL THEN NULL WHEN w.held IN ('paused', 'group') THEN 0 ELSE 2 END
            FROM woken AS w
            WHERE l.seq = w.seq AND w.was IS DISTINCT FROM w.held AND l.slot = 1 AND l.state = 'queued'
            RETURNING w.id
        )
        SELECT array_agg(x.id) INTO _again
        FROM (
            SELECT e.id FROM (
                SELECT w.id, 1 AS runs FROM woken AS w WHERE w.was IS DISTINCT FROM w.held
                UNION ALL
                SELECT c.id, -1 FROM changed AS c
            ) AS e
            GROUP BY e.id HAVING sum(e.runs) <> 0
        ) AS x;
        _open := _open || _again;
    END LOOP;
    IF _seated IS NOT NULL THEN
        _sessions := _sessions || ARRAY(
            SELECT l.session FROM live AS l WHERE l.grp = ANY (_seated) AND l.slot = 1 AND l.session IS NOT NULL
        );
    END IF;
    IF _sessions IS NOT NULL THEN
        PERFORM reseat(_now, _sessions);
    END IF;
END $$;

-- Does what was left to the next exchange, a bounded number; tells whether it did anything, and whether all that is left
-- waits for transactions of applications (`held`).
CREATE FUNCTION catch_up(_now bigint, OUT ready boolean, OUT held boolean) LANGUAGE plpgsql AS $$
DECLARE
    _groups bigint[];
    _sessions bigint[];
    _taken record;
BEGIN
    ready := false;
    held := false;
    IF NOT EXISTS (SELECT 1 FROM recheck) THEN
        RETURN;
    END IF;
    WITH taken AS (
        DELETE FROM recheck
        WHERE id = ANY (ARRAY(
            SELECT r.id FROM recheck AS r WHERE r.word IS NULL ORDER BY r.id LIMIT 200 FOR UPDATE SKIP LOCKED
        ))
        RETURNING grp, session
    )
    SELECT array_agg(grp), array_agg(session) INTO _groups, _sessions FROM taken;
    ready := _groups IS NOT NULL;
    PERFORM admit(_now, _groups);
    PERFORM reseat(_now, _sessions);
    IF EXISTS (SELECT 1 FROM recheck AS r WHERE r.word IS NOT NULL) THEN
        SELECT t.* INTO _taken FROM take_in_all(_now) AS t;
        ready := ready OR _taken.done;
        held := _taken.held AND NOT EXISTS (SELECT 1 FROM recheck AS r WHERE r.word IS NULL);
    END IF;
END $$;

-- Has runs that wait, or are scheduled, come into the queue, by way of their group and their session; returns how
-- many. Locks them, the highest number first. Uses the primary key.
CREATE FUNCTION queue_up(_now bigint, _runs bigint[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    _groups bigint[];
    _sessions bigint[];
    _queued integer;
    _locked bigint[];
BEGIN
    -- Said in this way, so that live_away is not taken for it, and walked from end to end.
    _locked := ARRAY(
        SELECT l.seq FROM live AS l
        WHERE l.seq = ANY (_runs) AND l.state NOT IN ('queued', 'running')
        ORDER BY l.seq DESC FOR NO KEY UPDATE
    );
    WITH moved AS (
        UPDATE live AS l SET
            state = 'queued',
            wake_at = NULL,
            slot = CASE WHEN l.slot = 0 THEN 2 ELSE l.slot END,
            held = CASE WHEN l.slot = 0 THEN 'group' WHEN l.session IS NOT NULL THEN 'session' END,
            seat = CASE WHEN l.session IS NULL THEN NULL WHEN l.slot = 0 THEN 0 ELSE 2 END
        WHERE l.seq = ANY (_locked)
        RETURNING l.grp, l.session
    )
    SELECT count(*), array_agg(grp) FILTER (WHERE grp IS NOT NULL), array_agg(session) FILTER (WHERE session IS NOT NULL)
    INTO _queued, _groups, _sessions
    FROM moved;
    IF _queued > 0 THEN
        PERFORM nextval('rewind');
    END IF;
    IF _groups IS NOT NULL THEN
        PERFORM admit(_now, _groups, _locked);
    END IF;
    IF _sessions IS NOT NULL THEN
        PERFORM reseat(_now, _sessions);
    END IF;
    RETURN _queued;
END $$;

-- Queues runs that waited behind others to begin, or lets their delay run; their time counts from then. Returns how many
-- are queued. Locks them as queue_up() does. Uses the primary key.
CREATE FUNCTION let_begin(_now bigint, _runs bigint[]) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM live AS l WHERE l.seq = ANY (_runs) ORDER BY l.seq DESC FOR NO KEY UPDATE;
    UPDATE live AS l SET
        state = CASE WHEN l.due > _now THEN 'scheduled' ELSE l.state END,
        wake_at = CASE WHEN l.due > _now THEN l.due END,
        deadline = CASE WHEN l.timeout IS NULL THEN l.deadline ELSE greatest(l.due, _now) + l.timeout END,
        due = NULL,
        timeout = NULL
    WHERE l.seq = ANY (_runs) AND (l.due IS NOT NULL OR l.timeout IS NOT NULL);
    RETURN queue_up(_now, ARRAY(
        SELECT l.seq FROM live AS l WHERE l.seq = ANY (_runs) AND l.state NOT IN ('scheduled', 'queued', 'running')
    ));
END $$;

INSERT INTO migration (version, name, oldest) VALUES (2, '0002_holding', 1);

COMMIT;
