-- Claiming: which lanes a worker serves, which runs it may have of them, and what it gets of these.

BEGIN;

-- The lanes that a worker serves. Uses lane_name.
CREATE FUNCTION served(_worker bigint) RETURNS integer[] LANGUAGE sql STABLE
SET search_path FROM CURRENT AS $$
    SELECT coalesce(array_agg(l.id ORDER BY l.id), '{}')
    FROM worker AS w
    CROSS JOIN unnest(w.queues) AS q (name)
    CROSS JOIN unnest(w.workflows) AS f (name)
    JOIN lane AS l ON l.queue = q.name AND l.workflow = f.name
    WHERE w.id = _worker
        AND (l.version = '' OR has_version(w.versions, l.workflow, l.version))
$$;

-- Whether nobody is making lanes: those whose making had moved the topology on before this was asked can be seen then. One
-- that asks at the same moment may have it say no. Holds nothing, and waits for nobody.
CREATE FUNCTION lanes_settled() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN pg_try_advisory_lock(lanes_lock()) AND pg_advisory_unlock(lanes_lock());
END $$;

-- Of lanes, those that are not paused, by their queue, their workflow or the namespace.
CREATE FUNCTION unpaused(_lanes integer[]) RETURNS integer[] LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM scope AS s WHERE s.paused AND s.kind <> 'group') THEN
        RETURN _lanes;
    END IF;
    RETURN ARRAY(
        SELECT l.id FROM lane AS l
        WHERE l.id = ANY (_lanes)
            AND NOT EXISTS (
                SELECT 1 FROM scope AS s
                WHERE s.paused
                    AND (
                        s.kind = 'namespace'
                        OR (s.kind = 'queue' AND s.name = l.queue)
                        OR (s.kind = 'workflow' AND s.name = l.workflow)
                    )
            )
    );
END $$;

-- The bytes of the checkpoints that a claim of a run brings. Uses checkpoint_position.
CREATE FUNCTION weight(_run bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(octet_length(c.body)), 0)
    FROM (SELECT body FROM checkpoint WHERE run = _run ORDER BY position LIMIT 256) AS c
$$;

-- A page of a run's checkpoints behind a position, as JSON, and whether there are more: at most 512 KiB of them, or one.
-- Walks checkpoint_position.
CREATE FUNCTION checkpoints_of(_run bigint, _after bigint, _most bigint, OUT page json, OUT more boolean)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    SELECT
        json_agg(json_build_object(
            'key', c.key, 'kind', c.kind, 'outcome', c.outcome, 'body', c.body, 'attempts', c.attempts,
            'digest', c.digest, 'at', c.at, 'started_at', c.started_at, 'saved_at', c.saved_at, 'position', c.position
        ) ORDER BY c.position) FILTER (WHERE c.fits),
        coalesce(bool_or(NOT c.fits), false)
    INTO page, more
    FROM (
        SELECT
            k.*,
            row_number() OVER page = 1
            OR (row_number() OVER page <= _most AND coalesce(sum(octet_length(k.body)) OVER page, 0) <= 524288) AS fits
        FROM (
            SELECT * FROM checkpoint AS x WHERE x.run = _run AND x.position > _after ORDER BY x.position LIMIT _most + 1
        ) AS k
        WINDOW page AS (ORDER BY k.position ROWS UNBOUNDED PRECEDING)
    ) AS c;
END $$;

-- The same of the signals that wait at it. Walks signal_waiting.
CREATE FUNCTION signals_of(_run bigint, _after bigint, _most bigint, OUT page json, OUT more boolean)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    SELECT
        json_agg(json_build_object('position', c.position, 'name', c.name, 'body', c.body) ORDER BY c.position)
            FILTER (WHERE c.fits),
        coalesce(bool_or(NOT c.fits), false)
    INTO page, more
    FROM (
        SELECT
            m.*,
            row_number() OVER page = 1
            OR (row_number() OVER page <= _most AND sum(octet_length(m.body)) OVER page <= 524288) AS fits
        FROM (
            SELECT * FROM signal AS x
            WHERE x.run = _run AND x.body IS NOT NULL AND x.position > _after ORDER BY x.position LIMIT _most + 1
        ) AS m
        WINDOW page AS (ORDER BY m.position ROWS UNBOUNDED PRECEDING)
    ) AS c;
END $$;

-- What few runs have, as JSON, of a run that was claimed: NULL where there is nothing.
CREATE FUNCTION particulars(_live live) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    _checkpoints json;
    _more_checkpoints boolean;
    _signals json;
    _more_signals boolean;
    _ended json;
    _unread json;
    _missing json;
BEGIN
    SELECT c.page, c.more INTO _checkpoints, _more_checkpoints FROM checkpoints_of(_live.seq, 0, 256) AS c;
    IF _live.ties & 16 <> 0 THEN
        SELECT s.page, s.more INTO _signals, _more_signals FROM signals_of(_live.seq, 0, 256) AS s;
    END IF;
    IF _live.ties & 64 <> 0 THEN
        SELECT
            json_agg(json_build_object('id', e.target, 'state', e.state, 'body', e.body)) FILTER (WHERE e.fits),
            json_agg(e.target) FILTER (WHERE NOT e.fits)
        INTO _ended, _unread
        FROM (
            SELECT
                w.target, d.state, d.body,
                row_number() OVER page = 1
                OR (row_number() OVER page <= 256 AND coalesce(sum(octet_length(d.body)) OVER page, 0) <= 524288) AS fits
            FROM wait AS w JOIN run AS t ON t.id = w.target JOIN ended AS d ON d.seq = t.seq
            WHERE w.run = _live.seq AND w.what = 'run'
            WINDOW page AS (ORDER BY w.key ROWS UNBOUNDED PRECEDING)
        ) AS e;
        SELECT json_agg(w.key) INTO _missing FROM wait AS w
        WHERE w.run = _live.seq AND w.what = 'run' AND NOT EXISTS (SELECT 1 FROM run AS t WHERE t.id = w.target);
    END IF;
    RETURN json_build_object(
        'crashes', _live.crashes,
        'cut_off', _live.cut_off,
        'deadline', _live.deadline,
        'parent', (SELECT r.parent FROM run AS r WHERE r.seq = _live.seq),
        'cancelling', CASE
            WHEN _live.cancelling IS NOT NULL
            THEN json_build_object('reason', _live.cancelling, 'deadline', _live.overdue)
        END,
        'group', (SELECT g.key FROM grp AS g WHERE g.id = _live.grp),
        'session', (SELECT s.key FROM session AS s WHERE s.id = _live.session),
        'labels', CASE
            WHEN _live.ties & 8 <> 0 THEN (SELECT json_object_agg(b.key, b.value) FROM label AS b WHERE b.run = _live.seq)
        END,
        'checkpoints', _checkpoints,
        'more_checkpoints', _more_checkpoints,
        'signals', _signals,
        'more_signals', _more_signals,
        'ended', _ended,
        'unread', _unread,
        'missing', _missing
    )::text;
END $$;

-- Whether a run that was claimed has any of that, besides a group and a session.
CREATE FUNCTION is_particular(_live live) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT _live.ties <> 0 OR _live.settled IS NOT NULL OR _live.attempt > 1 OR _live.cut_off OR _live.crashes > 0
        OR _live.deadline IS NOT NULL OR _live.cancelling IS NOT NULL
$$;

-- What a worker gets of the runs that it claimed, by parallel arrays in the order of their tokens.
CREATE TYPE claims AS (
    tokens bigint[], refs bigint[], ids text[], lanes integer[], inputs text[], attempts integer[], created_ats bigint[],
    particulars text[],
    floored boolean                       -- whether what lies before the floors was not looked at
);

-- Whether any run of lanes is ready for one of some owners. Looks at the last ones first: before the others lie the
-- entries of runs that were claimed, until a VACUUM removes these. Uses live_ready and live_ready_session. In this
-- language plans are kept.
CREATE FUNCTION any_ready(_lanes integer[], _owners bigint[]) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM unnest(_lanes) AS a (lane)
        CROSS JOIN LATERAL (
            SELECT 1 FROM live AS l
            WHERE 0 = ANY (_owners) AND l.lane = a.lane AND l.owner = 0 AND l.state = 'queued' AND l.held IS NULL
            ORDER BY l.priority DESC, l.place DESC LIMIT 1
        ) AS q
    ) OR EXISTS (
        SELECT 1 FROM unnest(_lanes) AS a (lane) CROSS JOIN unnest(_owners) AS o (owner)
        CROSS JOIN LATERAL (
            SELECT 1 FROM live AS l
            WHERE l.lane = a.lane AND l.owner = o.owner AND l.owner <> 0 AND l.state = 'queued' AND l.held IS NULL
            ORDER BY l.priority DESC, l.place DESC LIMIT 1
        ) AS q
        WHERE o.owner <> 0
    );
END $$;

-- Tells workers that runs are ready, if one has room for one that is for it. Uses live_owned, and what any_ready() uses.
CREATE FUNCTION tell_ready() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (
        EXISTS (SELECT 1 FROM live AS l WHERE l.state = 'queued' AND l.held IS NULL AND l.owner = 0)
        OR EXISTS (SELECT 1 FROM live AS l WHERE l.state = 'queued' AND l.held IS NULL AND l.owner <> 0)
    ) AND EXISTS (
        SELECT 1 FROM worker AS w
        WHERE CASE
            WHEN w.concurrency > (SELECT count(*) FROM live AS l WHERE l.worker = w.id AND l.state = 'running')
            THEN any_ready(served(w.id), CASE WHEN w.sessions > 0 THEN ARRAY[0, w.id, -1] ELSE '{0}' END)
        END
    ) THEN
        PERFORM pg_notify(channel(), 'w');
    END IF;
END $$;

-- Gives the first ready runs of lanes to a worker, as long as they fit into the bytes; `_first` is the token of the first
-- one. Queues take turns, beginning behind `_after`. Walks at most `_slots` entries of live_ready for each lane, and of
-- live_ready_session for each owner; each query says which of the two it is about, else neither would be used. Locks no run
-- that it does not take, but for those that are too big; runs that others have in hand are passed over. `_floors` tells of
-- lanes up to which place of which priority there was nothing ready for anybody, as pairs in the order of `_floor_lanes`:
-- what lies there is walked only if there are fewer than `_slots` behind it.
CREATE FUNCTION claim(
    _clock bigint, _now bigint, _worker bigint, _lanes integer[], _owners bigint[], _slots integer, _after text, _first bigint,
    _bytes bigint, _floor_lanes integer[], _floor_priorities integer[], _floor_places bigint[]
) RETURNS claims LANGUAGE plpgsql AS $$
DECLARE
    _shares integer[];
    _takes integer[] := _lanes;
    _from bigint[] := _owners;
    _priorities integer[] := ARRAY[-2147483648];
    _places bigint[] := ARRAY[-1];
    _belows bigint[] := ARRAY[2147483648];
    _queues text[] := ARRAY[''];
    _taken record;
    _particulars text[];
    _begun bigint;
    _claims claims;
BEGIN
    -- How many of the first ones lie in each lane: so many are locked there, and no others.
    IF cardinality(_lanes) = 1 AND cardinality(_owners) = 1 AND _floor_lanes IS NULL THEN
        _shares := ARRAY[_slots];
    ELSE
        LOOP
            SELECT
                array_agg(p.lane), array_agg(p.owner), array_agg(p.share), array_agg(p.queue),
                array_agg(p.priority), array_agg(p.place), array_agg(p.below)
            INTO _takes, _from, _shares, _queues, _priorities, _places, _belows
            FROM (
                SELECT f.lane, f.owner, f.queue, f.priority, f.place, f.below, count(*)::integer AS share
                FROM (
                    SELECT
                        a.id AS lane, o.owner, a.queue, s.priority, s.place, s.below,
                        row_number() OVER (PARTITION BY a.queue ORDER BY q.priority, q.place) AS turn
                    FROM lane AS a
                    CROSS JOIN unnest(_owners) AS o (owner)
                    LEFT JOIN unnest(_floor_lanes, _floor_priorities, _floor_places) AS e (lane, priority, place)
                        ON e.lane = a.id AND o.owner = 0
                    -- Better priorities, and behind the floor; all where there is none.
                    CROSS JOIN LATERAL (
                        VALUES
                            (-2147483648, -1::bigint, coalesce(e.priority, 2147483648)),
                            (e.priority, e.place, 2147483648)
                    ) AS s (priority, place, below)
                    CROSS JOIN LATERAL (
                        (
                            SELECT l.priority, l.place FROM live AS l
                            WHERE o.owner = 0 AND l.lane = a.id AND l.owner = 0 AND l.state = 'queued' AND l.held IS NULL
                                AND (l.priority, l.place) > (s.priority, s.place) AND l.priority < s.below
                            ORDER BY l.priority, l.place LIMIT _slots
                        )
                        UNION ALL
                        (
                            SELECT l.priority, l.place FROM live AS l
                            WHERE l.lane = a.id AND l.owner = o.owner AND l.owner <> 0 AND l.state = 'queued'
                                AND l.held IS NULL
                                AND (l.priority, l.place) > (s.priority, s.place) AND l.priority < s.below
                            ORDER BY l.priority, l.place LIMIT _slots
                        )
                    ) AS q
                    WHERE a.id = ANY (_lanes)
                    ORDER BY turn, a.queue <= _after, a.queue LIMIT _slots
                ) AS f
                GROUP BY f.lane, f.owner, f.queue, f.priority, f.place, f.below
            ) AS p;
            EXIT WHEN _floor_lanes IS NULL OR (SELECT sum(e) FROM unnest(_shares) AS e) = _slots;
            _floor_lanes := NULL;
        END LOOP;
        IF _takes IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    SELECT
        array_agg(q.seq) AS refs, array_agg(q.id) AS ids, array_agg(q.lane) AS lanes, array_agg(q.input) AS inputs,
        array_agg(q.attempt) AS attempts, array_agg(q.created_at) AS created_ats, array_agg(q.is_plain) AS plain,
        bool_and(q.is_plain) AS all_plain, array_agg(_first - 1 + q.number) AS tokens, array_agg(q.bytes) AS sizes,
        sum(q.bytes) AS bytes, array_agg(q.queue) AS queues, array_agg(q.priority) AS priorities,
        array_agg(q.place) AS places, array_agg(q.session) FILTER (WHERE q.session IS NOT NULL) AS sessions
    INTO _taken
    FROM (
        SELECT
            l.*, t.queue, r.id, r.input, r.created_at, row_number() OVER () AS number,
            octet_length(r.input) + CASE WHEN l.begun THEN weight(l.seq) ELSE 0 END AS bytes
        FROM unnest(_takes, _from, _priorities, _places, _belows, _shares, _queues)
            AS t (lane, owner, priority, place, below, share, queue)
        CROSS JOIN LATERAL (
            SELECT f.* FROM (
                SELECT
                    l.seq, l.lane, l.priority, l.place, l.attempt, l.session, l.started_at IS NOT NULL AS begun,
                    NOT is_particular(l) AND l.grp IS NULL AS is_plain
                FROM live AS l
                WHERE t.owner = 0 AND l.lane = t.lane AND l.owner = 0 AND l.state = 'queued' AND l.held IS NULL
                    AND (l.priority, l.place) > (t.priority, t.place) AND l.priority < t.below
                ORDER BY l.priority, l.place LIMIT t.share FOR NO KEY UPDATE SKIP LOCKED
            ) AS f
            UNION ALL
            SELECT f.* FROM (
                SELECT
                    l.seq, l.lane, l.priority, l.place, l.attempt, l.session, l.started_at IS NOT NULL AS begun, false
                FROM live AS l
                WHERE l.lane = t.lane AND l.owner = t.owner AND l.owner <> 0 AND l.state = 'queued' AND l.held IS NULL
                    AND (l.priority, l.place) > (t.priority, t.place) AND l.priority < t.below
                ORDER BY l.priority, l.place LIMIT t.share FOR NO KEY UPDATE SKIP LOCKED
            ) AS f
        ) AS l
        -- One by one, so that they stay in their order, which a join of another kind would not keep.
        CROSS JOIN LATERAL (SELECT x.id, x.input, x.created_at FROM run AS x WHERE x.seq = l.seq OFFSET 0) AS r
    ) AS q;
    _claims.floored := _floor_lanes IS NOT NULL;
    IF _taken.refs IS NULL THEN
        RETURN _claims;
    END IF;
    IF cardinality(_takes) > 1 THEN
        -- They are there lane by lane.
        _taken.tokens := ARRAY(
            SELECT _first - 1 + row_number() OVER (ORDER BY e.turn, e.queue <= _after, e.queue)
            FROM (
                SELECT u.*, row_number() OVER (PARTITION BY u.queue ORDER BY u.priority, u.place) AS turn
                FROM unnest(_taken.queues, _taken.priorities, _taken.places) WITH ORDINALITY
                    AS u (queue, priority, place, number)
            ) AS e
            ORDER BY e.number
        );
    END IF;
    IF _taken.bytes > _bytes AND cardinality(_taken.refs) > 1 THEN
        -- No more than fit.
        SELECT greatest(1, count(*) FILTER (WHERE e.bytes <= _bytes)) INTO _slots
        FROM (
            SELECT sum(u.size) OVER (ORDER BY u.token) AS bytes FROM unnest(_taken.sizes, _taken.tokens) AS u (size, token)
        ) AS e;
        RETURN claim(
            _clock, _now, _worker, _lanes, _owners, _slots, _after, _first, _bytes, _floor_lanes, _floor_priorities,
            _floor_places
        );
    END IF;
    IF NOT _taken.all_plain THEN
        -- Of what was locked after somebody had changed it all else was read as it had been before.
        SELECT
            array_agg(coalesce(x.input, e.input) ORDER BY e.number), array_agg(x.particulars ORDER BY e.number)
        INTO _taken.inputs, _particulars
        FROM unnest(_taken.refs, _taken.inputs, _taken.plain) WITH ORDINALITY AS e (ref, input, is_plain, number)
        LEFT JOIN LATERAL (
            SELECT
                r.input,
                CASE
                    WHEN is_particular(l) THEN particulars(l)
                    ELSE json_build_object(
                        'group', (SELECT g.key FROM grp AS g WHERE g.id = l.grp),
                        'session', (SELECT s.key FROM session AS s WHERE s.id = l.session)
                    )::text
                END AS particulars
            FROM live AS l JOIN run AS r ON r.seq = l.seq
            WHERE l.seq = e.ref AND NOT e.is_plain OFFSET 0
        ) AS x ON true;
    END IF;
    -- By now others may have queued what was not due at the time of this exchange. Read when all are locked.
    _begun := coalesce(_clock, clock_ms());
    UPDATE live AS l SET
        state = 'running', worker = _worker, token = _taken.tokens[array_position(_taken.refs, l.seq)],
        started_at = coalesce(l.started_at, _begun), seat = CASE WHEN l.session IS NOT NULL THEN 3 END
    WHERE l.seq = ANY (_taken.refs);
    _claims.tokens := _taken.tokens;
    _claims.refs := _taken.refs;
    _claims.ids := _taken.ids;
    _claims.lanes := _taken.lanes;
    _claims.inputs := _taken.inputs;
    _claims.attempts := _taken.attempts;
    _claims.created_ats := _taken.created_ats;
    _claims.particulars := coalesce(_particulars, array_fill(NULL::text, ARRAY[cardinality(_taken.refs)]));
    IF _taken.sessions IS NOT NULL THEN
        PERFORM reseat(_now, _taken.sessions);
    END IF;
    RETURN _claims;
END $$;

-- What a worker owns of a range of tokens. Uses live_owned.
CREATE FUNCTION claimed(_worker bigint, _first bigint) RETURNS claims LANGUAGE sql STABLE AS $$
    SELECT
        array_agg(l.token ORDER BY l.token), array_agg(l.seq ORDER BY l.token), array_agg(r.id ORDER BY l.token),
        array_agg(l.lane ORDER BY l.token), array_agg(r.input ORDER BY l.token), array_agg(l.attempt ORDER BY l.token),
        array_agg(r.created_at ORDER BY l.token), array_agg(particulars(l) ORDER BY l.token), false
    FROM live AS l JOIN run AS r ON r.seq = l.seq
    WHERE l.worker = _worker AND l.state = 'running' AND l.token BETWEEN _first AND _first + 255
$$;

-- Claims where there are limits, rates or sessions that nobody owns to look at: run by run, in order, each within what
-- is left of all that it lies in (the rule is that of budget.py, and explained there). Locks the scopes that have
-- budgets, in their order, so that those who claim within them take turns. Tells whether more may begin now, and when the
-- next may otherwise; with `_slots` 0 nothing else. Uses scope_budget, live_ready,
-- live_ready_session, live_owned, live_holder.
CREATE FUNCTION claim_within(
    _clock bigint, _now bigint, _worker bigint, _lanes integer[], _slots integer, _after text, _first bigint, _bytes bigint,
    OUT claimed integer, OUT more boolean, OUT opens_at bigint
) LANGUAGE plpgsql AS $$
DECLARE
    _heads record;
    _i integer;
    _at integer[];
    _ends integer[];
    _turn integer;
    _owners bigint[] := ARRAY[0];
    _rooms bigint := 0;
    _keeps_until bigint;
    _new_sessions bigint[] := '{}';
    _touched bigint[] := '{}';
    _put_off bigint[] := '{}';
    _group bigint;
    _budgets record;
    _left bigint[];
    _debts bigint[];
    _debts_at bigint[];
    _ahead bigint;
    _own boolean;
    _blocked boolean;
    _debt bigint;
    _opens bigint;
    _late bigint;
    _weight bigint;
    _reseated boolean := false;
    _progress boolean;
BEGIN
    claimed := 0;
    SELECT w.sessions - (SELECT count(*) FROM session AS s WHERE s.owner = w.id) INTO _rooms
    FROM worker AS w WHERE w.id = _worker AND w.sessions > 0;
    IF FOUND THEN
        _owners := ARRAY[0, _worker, -1];
    ELSE
        _rooms := 0;
    END IF;
    FOR _round IN 1..8 LOOP
        more := false;
        opens_at := NULL;
        _progress := false;
        IF _round = 1 THEN
            WITH locked AS (
                SELECT s.* FROM scope AS s
                WHERE s.budget
                    AND (
                        s.kind <> 'group'
                        OR s.name IN (
                            SELECT g.key FROM unnest(_lanes) AS a (lane) CROSS JOIN unnest(_owners) AS o (owner)
                            CROSS JOIN LATERAL (
                                (
                                    SELECT l.grp FROM live AS l
                                    WHERE o.owner = 0 AND l.lane = a.lane AND l.owner = 0 AND l.state = 'queued'
                                        AND l.held IS NULL
                                    ORDER BY l.priority, l.place LIMIT _slots * 8 + 8
                                )
                                UNION ALL
                                (
                                    SELECT l.grp FROM live AS l
                                    WHERE l.lane = a.lane AND l.owner = o.owner AND l.owner <> 0 AND l.state = 'queued'
                                        AND l.held IS NULL
                                    ORDER BY l.priority, l.place LIMIT _slots * 8 + 8
                                )
                            ) AS q
                            JOIN grp AS g ON g.id = q.grp
                        )
                    )
                ORDER BY s.kind, s.name FOR NO KEY UPDATE
            )
            SELECT
                count(*)::integer AS number, array_agg(s.kind) AS kinds, array_agg(s.name) AS names,
                array_agg(s.running::bigint) AS most, array_agg(s.rate_count) AS counts,
                array_agg(s.rate_period) AS periods, array_agg(s.rate_burst) AS bursts,
                -- Nothing is left of what a clock counted that was far ahead then: see budget.py.
                array_agg(CASE WHEN s.debt_at - _now > 60000 THEN 0 ELSE s.debt END) AS debts,
                array_agg(CASE WHEN s.debt_at - _now > 60000 THEN _now ELSE s.debt_at END) AS debts_at,
                bool_or(s.running IS NOT NULL AND s.kind <> 'group') AS limited
            INTO _budgets
            FROM locked AS s;
            _left := _budgets.most;
            _debts := _budgets.debts;
            _debts_at := _budgets.debts_at;
            IF _budgets.limited THEN
                SELECT array_agg(u.left ORDER BY u.place) INTO _left FROM (
                    SELECT b.place, b.most - coalesce(sum(n.runs), 0)::bigint AS left
                    FROM unnest(_budgets.kinds, _budgets.names, _budgets.most) WITH ORDINALITY AS b (kind, name, most, place)
                    LEFT JOIN (
                        SELECT l.queue, l.workflow, c.runs
                        FROM (
                            SELECT r.lane, count(*) AS runs FROM live AS r WHERE r.state = 'running' GROUP BY r.lane
                        ) AS c JOIN lane AS l ON l.id = c.lane
                    ) AS n ON b.kind = 'namespace'
                        OR (b.kind = 'queue' AND b.name = n.queue) OR (b.kind = 'workflow' AND b.name = n.workflow)
                    GROUP BY b.place, b.most
                ) AS u;
            END IF;
        END IF;
        SELECT
            array_agg(h.seq) AS seqs, array_agg(h.priority) AS priorities, array_agg(h.queue) AS queues, array_agg(h.workflow) AS workflows,
            array_agg(h.key) AS keys, array_agg(h.session) AS sessions, array_agg(h.owner) AS owners,
            array_agg(h.started_at) AS started_ats, array_agg(h.budgeted) AS budgeted
        INTO _heads
        FROM (
            SELECT
                q.*, l.queue, l.workflow, coalesce(g.key, '') AS key,
                EXISTS (SELECT 1 FROM scope AS s WHERE s.budget AND s.kind = 'group' AND s.name = g.key) AS budgeted
            FROM unnest(_lanes) AS a (lane)
            JOIN lane AS l ON l.id = a.lane
            CROSS JOIN unnest(_owners) AS o (owner)
            CROSS JOIN LATERAL (
                (
                    SELECT r.seq, r.priority, r.place, r.grp, r.started_at, r.session, r.owner FROM live AS r
                    WHERE o.owner = 0 AND r.lane = a.lane AND r.owner = 0 AND r.state = 'queued' AND r.held IS NULL
                    ORDER BY r.priority, r.place LIMIT _slots - claimed + 1
                )
                UNION ALL
                (
                    SELECT r.seq, r.priority, r.place, r.grp, r.started_at, r.session, r.owner FROM live AS r
                    WHERE r.lane = a.lane AND r.owner = o.owner AND r.owner <> 0 AND r.state = 'queued'
                        AND r.held IS NULL
                    ORDER BY r.priority, r.place LIMIT _slots - claimed + 1
                )
            ) AS q
            LEFT JOIN grp AS g ON g.id = q.grp
            ORDER BY l.queue <= _after, l.queue, q.priority, q.place, q.seq
        ) AS h;
        SELECT array_agg(t.first), array_agg(t.last) INTO _at, _ends
        FROM (
            SELECT min(e.place)::integer AS first, max(e.place)::integer AS last
            FROM unnest(_heads.queues) WITH ORDINALITY AS e (queue, place) GROUP BY e.queue ORDER BY 1
        ) AS t;
        _turn := 0;
        -- By turns of the queues: of each the first one that may begin.
        <<turns>>
        WHILE cardinality(_at) > 0 LOOP
            _turn := _turn % cardinality(_at) + 1;
            <<heads>>
            LOOP
                IF _at[_turn] > _ends[_turn] THEN
                    -- This queue has no more.
                    _at := _at[:_turn - 1] || _at[_turn + 1:];
                    _ends := _ends[:_turn - 1] || _ends[_turn + 1:];
                    _turn := _turn - 1;
                    EXIT heads;
                END IF;
                _i := _at[_turn];
                _at[_turn] := _i + 1;
                IF _heads.budgeted[_i] AND NOT EXISTS (
                    SELECT 1 FROM unnest(_budgets.kinds, _budgets.names) AS b (kind, name)
                    WHERE b.kind = 'group' AND b.name = _heads.keys[_i]
                ) THEN
                    -- It has come since the budgets were locked: the next exchange looks at its rate.
                    more := true;
                    CONTINUE heads;
                END IF;
                _blocked := false;
                _opens := NULL;
                _late := NULL;
                FOR i IN 1.._budgets.number LOOP
                    _own := _budgets.kinds[i] = 'group';
                    CONTINUE WHEN NOT (
                        _budgets.kinds[i] = 'namespace'
                        OR (_budgets.kinds[i] = 'queue' AND _budgets.names[i] = _heads.queues[_i])
                        OR (_budgets.kinds[i] = 'workflow' AND _budgets.names[i] = _heads.workflows[_i])
                        OR (_own AND _budgets.names[i] = _heads.keys[_i])
                    );
                    IF NOT _own AND _left[i] <= 0 THEN
                        _blocked := true;
                    ELSIF _budgets.counts[i] IS NOT NULL THEN
                        _debt := greatest(0, _debts[i] - greatest(0, _now - _debts_at[i]) * _budgets.counts[i])
                            - (_budgets.bursts[i] - 1) * _budgets.periods[i];
                        IF _debt > 0 AND _own THEN
                            -- Behind those of its group that were put off before it.
                            SELECT count(*) INTO _ahead
                            FROM (
                                SELECT 1 FROM grp AS g JOIN live AS l ON l.grp = g.id AND l.slot = 1
                                WHERE g.key = _budgets.names[i] AND l.held = 'rate'
                                    AND (l.priority, l.seq) < (_heads.priorities[_i], _heads.seqs[_i])
                                LIMIT 500
                            ) AS before;
                            _debt := _debt + _ahead * _budgets.periods[i];
                            _late := greatest(_now, _debts_at[i])
                                + (_debt + _budgets.counts[i] - 1) / _budgets.counts[i];
                        ELSIF _debt > 0 THEN
                            _opens := greatest(
                                _opens,
                                greatest(_now, _debts_at[i]) + (_debt + _budgets.counts[i] - 1) / _budgets.counts[i]
                            );
                        END IF;
                    END IF;
                END LOOP;
                CONTINUE heads WHEN _blocked;
                IF _opens IS NOT NULL THEN
                    opens_at := least(opens_at, _opens);
                    CONTINUE heads;
                END IF;
                IF _late IS NOT NULL THEN
                    IF claimed >= _slots THEN
                        more := true;
                        EXIT turns;
                    END IF;
                    -- Kept until the rate of its group lets it begin.
                    UPDATE live AS l SET state = 'scheduled', held = 'rate', wake_at = _late, seat = NULL
                    WHERE l.seq = _heads.seqs[_i] AND (l.state, l.held) IS NOT DISTINCT FROM ('queued', NULL)
                    RETURNING l.grp INTO _group;
                    _put_off := _put_off || _group;
                    _touched := _touched || _heads.sessions[_i];
                    _progress := true;
                    CONTINUE heads;
                END IF;
                IF _heads.owners[_i] = -1 AND NOT _heads.sessions[_i] = ANY (_new_sessions) THEN
                    IF _rooms <= 0 THEN
                        CONTINUE heads;
                    END IF;
                    IF claimed >= _slots THEN
                        more := true;
                        EXIT turns;
                    END IF;
                    PERFORM 1 FROM session AS s
                    WHERE s.id = _heads.sessions[_i] AND s.owner IS NULL FOR NO KEY UPDATE SKIP LOCKED;
                    CONTINUE heads WHEN NOT FOUND;
                END IF;
                IF claimed >= _slots THEN
                    more := true;
                    EXIT turns;
                END IF;
                SELECT octet_length(r.input) + CASE WHEN _heads.started_ats[_i] IS NULL THEN 0 ELSE weight(r.seq) END INTO _weight
                FROM run AS r WHERE r.seq = _heads.seqs[_i];
                IF claimed > 0 AND _weight > _bytes THEN
                    more := true;
                    EXIT turns;
                END IF;
                UPDATE live AS l SET
                    state = 'running', worker = _worker, token = _first + claimed, started_at = coalesce(l.started_at, _clock, clock_ms()),
                    seat = CASE WHEN l.session IS NOT NULL THEN 3 END
                WHERE l.seq = (
                    SELECT x.seq FROM live AS x
                    -- Said in this way, so that live_ready is not taken for it, and walked from end to end.
                    WHERE x.seq = _heads.seqs[_i] AND (x.state, x.held) IS NOT DISTINCT FROM ('queued', NULL)
                    FOR NO KEY UPDATE SKIP LOCKED
                );
                CONTINUE heads WHEN NOT FOUND;
                claimed := claimed + 1;
                _bytes := _bytes - _weight;
                _progress := true;
                IF _heads.owners[_i] = -1 AND NOT _heads.sessions[_i] = ANY (_new_sessions) THEN
                    UPDATE session AS s SET owner = _worker WHERE s.id = _heads.sessions[_i];
                    _new_sessions := _new_sessions || _heads.sessions[_i];
                    _rooms := _rooms - 1;
                END IF;
                _touched := _touched || _heads.sessions[_i];
                FOR i IN 1.._budgets.number LOOP
                    CONTINUE WHEN NOT (
                        _budgets.kinds[i] = 'namespace'
                        OR (_budgets.kinds[i] = 'queue' AND _budgets.names[i] = _heads.queues[_i])
                        OR (_budgets.kinds[i] = 'workflow' AND _budgets.names[i] = _heads.workflows[_i])
                        OR (_budgets.kinds[i] = 'group' AND _budgets.names[i] = _heads.keys[_i])
                    );
                    _left[i] := _left[i] - 1;
                    IF _budgets.counts[i] IS NOT NULL THEN
                        _debts[i] := greatest(0, _debts[i] - greatest(0, _now - _debts_at[i]) * _budgets.counts[i])
                            + _budgets.periods[i];
                        _debts_at[i] := greatest(_now, _debts_at[i]);
                    END IF;
                END LOOP;
                _after := _heads.queues[_i];
                EXIT heads;
            END LOOP;
        END LOOP;
        -- In their place those come forward that have begun and go on, but were too many.
        _put_off := ARRAY(
            SELECT DISTINCT e FROM unnest(_put_off) AS e
            WHERE EXISTS (
                SELECT 1 FROM live AS l WHERE l.grp = e AND l.slot = 1 AND (l.state, l.held) = ('queued', 'group')
            )
        );
        IF cardinality(_put_off) > 0 THEN
            PERFORM admit(_now, _put_off);
            _put_off := '{}';
        END IF;
        IF cardinality(_touched) > 0 THEN
            -- Seats go on to others, and those of new sessions are the worker's.
            PERFORM reseat(_now, _touched);
            _touched := '{}';
            _reseated := true;
        END IF;
        EXIT WHEN claimed >= _slots OR NOT _progress;
    END LOOP;
    UPDATE scope AS s SET debt = b.debt, debt_at = b.at
    FROM unnest(_budgets.kinds, _budgets.names, _debts, _debts_at) AS b (kind, name, debt, at)
    WHERE s.kind = b.kind AND s.name = b.name AND (s.debt, s.debt_at) IS DISTINCT FROM (b.debt, b.at);
    IF _reseated AND NOT more THEN
        -- Among those that have come forward one may begin.
        SELECT c.more, c.opens_at INTO more, opens_at
        FROM claim_within(_clock, _now, _worker, _lanes, 0, _after, _first, _bytes) AS c;
    ELSIF cardinality(_owners) > 1 AND _rooms <= 0 AND any_ready(_lanes, ARRAY[-1]) THEN
        -- One that owns as many sessions as it may looks again when it gives one up, if there is another one.
        SELECT s.idle_until INTO _keeps_until FROM session AS s
        WHERE s.owner = _worker AND s.idle_until IS NOT NULL ORDER BY s.idle_until LIMIT 1;
        opens_at := least(opens_at, _keeps_until);
    END IF;
END $$;

INSERT INTO migration (version, name, oldest) VALUES (5, '0005_claiming', 1);

COMMIT;
