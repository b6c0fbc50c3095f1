-- One call per wake of a worker: checkpoints, settles, timers, claims, and the reply. An exchange that writes holds the
-- row of its worker until it commits, so that what the worker owns is not taken from it meanwhile; whoever takes runs
-- from a worker locks that row first.

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
        AND (
            l.version = ''
            OR EXISTS (
                SELECT 1 FROM generate_series(1, cardinality(w.versions), 2) AS i
                WHERE w.versions[i] = l.workflow AND w.versions[i + 1] = l.version
            )
        )
$$;

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

-- What few runs have, as JSON, of a run that was claimed: NULL where there is nothing. Checkpoints and signals are one
-- more than a page where there are more.
CREATE FUNCTION particulars(_live live) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'crashes', _live.crashes,
        'cut_off', _live.cut_off,
        'deadline', _live.deadline,
        'parent', r.parent,
        'cancelling', CASE
            WHEN _live.cancelling IS NOT NULL
            THEN json_build_object('reason', _live.cancelling, 'deadline', _live.overdue)
        END,
        'group', (SELECT g.key FROM grp AS g WHERE g.id = _live.grp),
        'session', (SELECT s.key FROM session AS s WHERE s.id = _live.session),
        'labels', CASE
            WHEN _live.ties & 8 <> 0 THEN (SELECT json_object_agg(b.key, b.value) FROM label AS b WHERE b.run = r.seq)
        END,
        'checkpoints', (
            SELECT json_agg(json_build_object(
                'key', c.key, 'kind', c.kind, 'outcome', c.outcome, 'body', c.body, 'attempts', c.attempts,
                'digest', c.digest, 'at', c.at, 'started_at', c.started_at, 'saved_at', c.saved_at, 'position', c.position
            ))
            FROM (SELECT * FROM checkpoint AS k WHERE k.run = r.seq ORDER BY k.position LIMIT 257) AS c
        ),
        'signals', CASE
            WHEN _live.ties & 16 <> 0 THEN (
                SELECT json_agg(json_build_object('position', m.position, 'name', m.name, 'body', m.body))
                FROM (
                    SELECT * FROM signal AS s
                    WHERE s.run = r.seq AND s.body IS NOT NULL ORDER BY s.position LIMIT 257
                ) AS m
            )
        END,
        'ended', CASE
            WHEN _live.ties & 64 <> 0 THEN (
                SELECT json_agg(json_build_object('id', t.id, 'state', d.state, 'body', d.body))
                FROM wait AS w JOIN run AS t ON t.id = w.target JOIN ended AS d ON d.seq = t.seq
                WHERE w.run = r.seq AND w.what = 'run'
            )
        END,
        'missing', CASE
            WHEN _live.ties & 64 <> 0 THEN (
                SELECT json_agg(w.key) FROM wait AS w
                WHERE w.run = r.seq AND w.what = 'run' AND NOT EXISTS (SELECT 1 FROM run AS t WHERE t.id = w.target)
            )
        END
    )::text
    FROM run AS r WHERE r.seq = _live.seq
$$;

-- Whether a run that was claimed has any of that.
CREATE FUNCTION is_particular(_live live) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT _live.ties <> 0 OR _live.settled IS NOT NULL OR _live.attempt > 1 OR _live.cut_off OR _live.crashes > 0
        OR _live.grp IS NOT NULL OR _live.session IS NOT NULL OR _live.deadline IS NOT NULL
        OR _live.cancelling IS NOT NULL
$$;

-- What a worker gets of the runs that it claimed, by parallel arrays in the order of their tokens.
CREATE TYPE claims AS (
    tokens bigint[], refs bigint[], ids text[], lanes integer[], inputs text[], attempts integer[], created_ats bigint[],
    particulars text[],
    floored boolean                       -- whether what lies before the floors was not looked at
);

-- Gives the first ready runs of lanes to a worker, as long as they fit into the bytes; `_first` is the token of the first
-- one. Queues take turns, beginning behind `_after`. Walks at most `_slots` entries of live_ready for each lane and locks
-- no run that it does not take, but for those that are too big; runs that others have in hand are passed over. `_floors`
-- tells of lanes up to which place of which priority there was nothing ready for anybody, as pairs in the order of
-- `_floor_lanes`: what lies there is walked only if there are fewer than `_slots` behind it.
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
    _claims claims;
    _sessions integer[];
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
                        SELECT l.priority, l.place FROM live AS l
                        WHERE l.lane = a.id AND l.owner = o.owner AND l.state = 'queued' AND l.held IS NULL
                            AND (l.priority, l.place) > (s.priority, s.place) AND l.priority < s.below
                        ORDER BY l.priority, l.place LIMIT _slots
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
    WITH taken AS MATERIALIZED (
        SELECT q.seq, q.priority, q.place, q.started_at, t.queue
        FROM unnest(_takes, _from, _priorities, _places, _belows, _shares, _queues)
            AS t (lane, owner, priority, place, below, share, queue)
        CROSS JOIN LATERAL (
            SELECT l.seq, l.priority, l.place, l.started_at FROM live AS l
            WHERE l.lane = t.lane AND l.owner = t.owner AND l.state = 'queued' AND l.held IS NULL
                AND (l.priority, l.place) > (t.priority, t.place) AND l.priority < t.below
            ORDER BY l.priority, l.place LIMIT t.share FOR NO KEY UPDATE SKIP LOCKED
        ) AS q
    ),
    turned AS (
        SELECT t.*, row_number() OVER (PARTITION BY t.queue ORDER BY t.priority, t.place) AS turn FROM taken AS t
    ),
    sized AS (
        SELECT
            t.seq, r.id, r.input, r.created_at,
            row_number() OVER turns AS number,
            sum(octet_length(r.input) + CASE WHEN t.started_at IS NULL THEN 0 ELSE weight(t.seq) END) OVER turns AS bytes
        FROM turned AS t JOIN run AS r ON r.seq = t.seq
        WINDOW turns AS (ORDER BY t.turn, t.queue <= _after, t.queue ROWS UNBOUNDED PRECEDING)
    ),
    claimed AS (
        UPDATE live AS l SET
            state = 'running', worker = _worker, token = _first + s.number - 1,
            -- By now others may have queued what was not due at the time of this exchange.
            started_at = coalesce(l.started_at, _clock, clock_ms()),
            seat = CASE WHEN l.session IS NOT NULL THEN 3 END
        FROM sized AS s
        WHERE l.seq = s.seq AND (s.number = 1 OR s.bytes <= _bytes)
        RETURNING
            l.token, l.seq, l.lane, l.attempt, l.session, s.id, s.input, s.created_at,
            CASE WHEN is_particular(l) THEN particulars(l) END AS particulars
    )
    SELECT
        array_agg(c.token), array_agg(c.seq), array_agg(c.id), array_agg(c.lane), array_agg(c.input),
        array_agg(c.attempt), array_agg(c.created_at), array_agg(c.particulars),
        array_agg(c.session) FILTER (WHERE c.session IS NOT NULL)
    INTO
        _claims.tokens, _claims.refs, _claims.ids, _claims.lanes, _claims.inputs, _claims.attempts, _claims.created_ats,
        _claims.particulars, _sessions
    FROM claimed AS c;
    _claims.floored := _floor_lanes IS NOT NULL;
    IF _sessions IS NOT NULL THEN
        PERFORM reseat(_now, _sessions);
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
-- next may otherwise; with `_slots` 0 nothing else. Uses scope_budget, live_ready, live_owned.
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
    _new_sessions integer[] := '{}';
    _touched integer[] := '{}';
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
                                SELECT l.grp FROM live AS l
                                WHERE l.lane = a.lane AND l.owner = o.owner AND l.state = 'queued' AND l.held IS NULL
                                ORDER BY l.priority, l.place LIMIT _slots * 8 + 8
                            ) AS q
                            JOIN grp AS g ON g.id = q.grp
                        )
                    )
                ORDER BY s.kind, s.name FOR NO KEY UPDATE
            )
            SELECT
                count(*)::integer AS number, array_agg(s.kind) AS kinds, array_agg(s.name) AS names,
                array_agg(s.running::bigint) AS most, array_agg(s.rate_count) AS counts,
                array_agg(s.rate_period) AS periods, array_agg(s.rate_burst) AS bursts, array_agg(s.debt) AS debts,
                array_agg(s.debt_at) AS debts_at, bool_or(s.running IS NOT NULL AND s.kind <> 'group') AS limited
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
                SELECT r.seq, r.priority, r.place, r.grp, r.started_at, r.session, o.owner FROM live AS r
                WHERE r.lane = a.lane AND r.owner = o.owner AND r.state = 'queued' AND r.held IS NULL
                ORDER BY r.priority, r.place
                LIMIT _slots - claimed + 1
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
                    WHERE l.seq = _heads.seqs[_i] AND l.state = 'queued' AND l.held IS NULL;
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
                    WHERE x.seq = _heads.seqs[_i] AND x.state = 'queued' AND x.held IS NULL FOR NO KEY UPDATE SKIP LOCKED
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

-- Of claims that are named, those that own their run no more, unless this exchange settles what was settled by it before.
CREATE FUNCTION refused(_refs bigint[], _tokens bigint[], _settling bigint[]) RETURNS bigint[] LANGUAGE sql STABLE AS $$
    SELECT array_agg(DISTINCT e.token)
    FROM unnest(_refs, _tokens) AS e (ref, token)
    LEFT JOIN live AS l ON l.seq = e.ref
    LEFT JOIN ended AS d ON d.seq = e.ref
    WHERE e.token IS NOT NULL
        AND (l.state = 'running' AND l.token = e.token) IS NOT TRUE
        AND (coalesce(l.settled, d.settled) = e.token AND e.token = ANY (_settling)) IS NOT TRUE
$$;

-- Settles that do not end their runs. A run that is being cancelled is released instead. Returns whether runs became
-- ready, and how many were settled. Locks those for whose end runs wait, as they would be locked to end them, so that
-- an end that is under way is not missed. Uses primary keys, signal_named and the unique index of run ids.
CREATE FUNCTION move_on(
    _now bigint, _refs bigint[], _tokens bigint[], _tos text[], _bodies text[], _delays bigint[], _ats bigint[],
    _waits jsonb, OUT moved integer, OUT ready boolean
) LANGUAGE plpgsql AS $$
DECLARE
    _moved record;
    _retried bigint[];
    _continued bigint[];
    _parked bigint[];
BEGIN
    -- First the locks, and then a look of its own: somebody may be cancelling one of them just now.
    PERFORM 1 FROM live AS l WHERE l.seq = ANY (_refs) ORDER BY l.seq DESC FOR NO KEY UPDATE;
    WITH told AS (
        SELECT
            e.*,
            CASE WHEN l.cancelling IS NOT NULL THEN 'release' ELSE e.asked END AS to,
            l.slot AS slot_before, l.started_at AS begun
        FROM unnest(_refs, _tokens, _tos, _bodies, _delays, _ats) AS e (ref, token, asked, body, delay, at)
        JOIN live AS l ON l.seq = e.ref AND l.token = e.token AND l.state = 'running'
    ),
    changed AS (
        UPDATE live AS l SET
            state = CASE
                WHEN t.to = 'park' THEN 'waiting' WHEN t.to = 'retry' AND t.delay > 0 THEN 'scheduled' ELSE 'queued'
            END,
            wake_at = CASE WHEN t.to = 'park' THEN t.at WHEN t.to = 'retry' AND t.delay > 0 THEN _now + t.delay END,
            attempt = CASE t.to WHEN 'retry' THEN l.attempt + 1 WHEN 'continue' THEN 1 ELSE l.attempt END,
            crashes = CASE WHEN t.to = 'continue' THEN 0 ELSE l.crashes END,
            cut_off = false, worker = NULL, settled = t.token,
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
        WHERE l.seq = t.ref
        RETURNING l.seq, t.to, l.state, l.grp, l.session, t.begun
    )
    SELECT
        count(*)::integer AS runs,
        array_agg(seq) FILTER (WHERE changed.to = 'park') AS parked,
        array_agg(seq) FILTER (WHERE changed.to = 'retry') AS retried,
        array_agg(seq) FILTER (WHERE changed.to = 'continue') AS continued,
        array_agg(grp) FILTER (WHERE grp IS NOT NULL) AS groups,
        array_agg(session) FILTER (WHERE session IS NOT NULL) AS sessions,
        bool_or(state = 'queued') AS queued
    INTO _moved
    FROM changed;
    moved := _moved.runs;
    ready := coalesce(_moved.queued, false) OR _moved.groups IS NOT NULL OR _moved.sessions IS NOT NULL;
    _parked := _moved.parked;
    _retried := _moved.retried;
    _continued := _moved.continued;
    IF _moved.queued THEN
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
                        w.what = 'run' AND NOT EXISTS (
                            SELECT 1 FROM run AS r JOIN live AS t ON t.seq = r.seq WHERE r.id = w.target
                        )
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
        UPDATE run AS r SET first = coalesce(r.first, r.input), input = e.body
        FROM unnest(_refs, _bodies) AS e (ref, body)
        WHERE r.seq = e.ref AND r.seq = ANY (_continued) AND e.body IS NOT NULL;
    END IF;
    IF _moved.groups IS NOT NULL THEN
        PERFORM admit(_now, _moved.groups);
    END IF;
    IF _moved.sessions IS NOT NULL THEN
        PERFORM reseat(_now, _moved.sessions);
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

-- Whether watched waits are true: the first signal of a name, the run that ended, the time that has come.
CREATE FUNCTION seen(_now bigint, _watches jsonb) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_agg(json_build_object(
        'ref', w.ref, 'token', w.token, 'key', w.key,
        'signal', CASE
            WHEN s.position IS NOT NULL THEN json_build_object('position', s.position, 'name', s.name, 'body', s.body)
        END,
        'ended', CASE WHEN d.seq IS NOT NULL THEN json_build_object('id', w.target, 'state', d.state, 'body', d.body) END,
        'missing', w.what = 'run' AND t.seq IS NULL
    ))::text
    FROM jsonb_to_recordset(_watches) AS w (ref bigint, token bigint, key text, what text, target text, at bigint)
    JOIN live AS l ON l.seq = w.ref AND l.token = w.token AND l.state = 'running'
    LEFT JOIN LATERAL (
        SELECT m.position, m.name, m.body FROM signal AS m
        WHERE w.what = 'signal' AND m.run = w.ref AND m.name = w.target AND m.body IS NOT NULL
        ORDER BY m.position LIMIT 1
    ) AS s ON true
    LEFT JOIN run AS t ON w.what = 'run' AND t.id = w.target
    LEFT JOIN ended AS d ON d.seq = t.seq
    WHERE s.position IS NOT NULL OR d.seq IS NOT NULL OR (w.what = 'run' AND t.seq IS NULL) OR w.at <= _now
$$;

-- Whether any run of lanes is ready for one of some owners. Uses live_ready.
CREATE FUNCTION any_ready(_lanes integer[], _owners bigint[]) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM unnest(_lanes) AS a (lane) CROSS JOIN unnest(_owners) AS o (owner)
        CROSS JOIN LATERAL (
            SELECT 1 FROM live AS l
            WHERE l.lane = a.lane AND l.owner = o.owner AND l.state = 'queued' AND l.held IS NULL LIMIT 1
        ) AS q
    )
$$;

-- Lanes with what they are called, as JSON.
CREATE FUNCTION lanes_told(_lanes integer[]) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_array(l.id, l.queue, l.workflow, l.version)), '[]')::text
    FROM lane AS l WHERE l.id = ANY (_lanes)
$$;

-- Makes the runs that checkpoints or schedules start. An id or unique key that somebody's open transaction has is waited
-- for a moment only: what else the worker has to say must not wait for it. NULL when it did not come; nothing is done then.
CREATE FUNCTION start_children(
    _now bigint, _starts jsonb, _makers bigint[],
    OUT ids text[], OUT existed boolean[], OUT same boolean[]
) LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
BEGIN
    SELECT s.ids, s.existed, s.same INTO ids, existed, same FROM start_all(_now, _starts, _makers, false, false) AS s;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END $$;

-- The same for schedules: a slot that could not be fired stays due.
CREATE FUNCTION fire(_now bigint, _fires jsonb) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
BEGIN
    RETURN fire_all(_now, _fires);
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Hands runs back for a second, without counting: what they start could not be made. Uses the primary key.
CREATE FUNCTION come_again(_now bigint, _runs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _groups integer[];
    _sessions integer[];
BEGIN
    WITH moved AS (
        UPDATE live AS l SET
            state = CASE WHEN l.cancelling IS NULL THEN 'scheduled' ELSE 'queued' END,
            wake_at = CASE WHEN l.cancelling IS NULL THEN _now + 1000 END,
            worker = NULL, token = NULL,
            held = CASE WHEN l.cancelling IS NOT NULL AND l.session IS NOT NULL THEN 'session' END,
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
    _brief boolean := false;
    _silent boolean := _save_refs IS NULL AND _end_refs IS NULL AND _move_refs IS NULL AND _tell_refs IS NULL
        AND _fires IS NULL AND NOT _repeated;
    _head record;
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
    _count integer;
    _started record;
    _outlook record;
    _walked bigint;
BEGIN
    now := coalesce(_clock, clock_ms());
    gone := false;
    more := false;
    IF NOT _silent THEN
        PERFORM 1 FROM worker AS w WHERE w.id = _worker FOR NO KEY UPDATE;
    END IF;
    SELECT
        w.sessions,
        t.last_value AS topology,
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
            SELECT s.next_slot FROM schedule AS s WHERE s.next_slot > now AND NOT s.paused ORDER BY s.next_slot LIMIT 1
        ) AS slot,
        EXISTS (SELECT 1 FROM schedule AS s WHERE s.next_slot <= now AND NOT s.paused) AS due,
        EXISTS (
            SELECT 1 FROM live AS l WHERE l.worker = _worker AND l.state = 'running' AND l.cancelling IS NOT NULL
        ) AS cancelling,
        _floor_lanes IS NOT NULL OR EXISTS (
            SELECT 1 FROM unnest(_lanes) AS a (lane) CROSS JOIN unnest(ARRAY[0, _worker, -1]) AS o (owner)
            CROSS JOIN LATERAL (
                SELECT 1 FROM live AS l
                WHERE l.lane = a.lane AND l.owner = o.owner AND l.state = 'queued' AND l.held IS NULL LIMIT 1
            ) AS q
            WHERE o.owner = 0 OR w.sessions > 0
        ) AS ready,
        (SELECT string_agg(DISTINCT left(l.topic, 1), '') FROM listener AS l WHERE l.until > clock_ms()) AS listeners
    INTO _head
    FROM worker AS w CROSS JOIN topology AS t WHERE w.id = _worker;
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
    _more := _head.ready;
    topology := _head.topology;
    IF topology IS DISTINCT FROM _topology OR (_silent AND _slots > 0) THEN
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
                SELECT s.start, p.place, s.number
                FROM jsonb_array_elements(_save_starts) WITH ORDINALITY AS s (start, number)
                JOIN unnest(_save_starting) WITH ORDINALITY AS p (place, number) USING (number)
                JOIN live AS l
                    ON l.seq = _save_refs[p.place] AND l.token = _save_tokens[p.place] AND l.state = 'running'
            ) AS e;
            IF _kept.starts IS NOT NULL THEN
                SELECT s.* INTO _started FROM start_children(now, _kept.starts, _kept.makers) AS s;
                IF _started.ids IS NULL THEN
                    PERFORM come_again(now, _kept.makers);
                END IF;
                _ready := array_position(_started.existed, false) IS NOT NULL;
                FOR i IN 1..coalesce(cardinality(_started.ids), 0) LOOP
                    IF NOT _started.same[i] THEN
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
            SELECT e.*, l.crashes
            FROM unnest(
                _save_refs, _save_tokens, _save_keys, _save_kinds, _save_outcomes, _save_bodies, _save_attempts,
                _save_digests, _save_ats, _save_begun
            ) WITH ORDINALITY AS e (ref, token, key, kind, outcome, body, attempts, digest, at, begun, place)
            JOIN live AS l ON l.seq = e.ref AND l.token = e.token AND l.state = 'running'
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
        SELECT count(*) AS rows, array_agg(n.ref) FILTER (WHERE n.crashes > 0 AND n.outcome <> 'open') AS progressed
        INTO _kept
        FROM named AS n;
        _odd := _kept.rows < cardinality(_save_refs);
        IF _kept.progressed IS NOT NULL THEN
            UPDATE live AS l SET crashes = 0 WHERE l.seq = ANY (_kept.progressed);
        END IF;
        IF _save_consumes IS NOT NULL THEN
            UPDATE signal AS s SET taken = s.body, taken_by = e.key, body = NULL
            FROM unnest(_save_refs, _save_tokens, _save_consumes, _save_keys) AS e (ref, token, position, key)
            JOIN live AS l ON l.seq = e.ref AND l.token = e.token AND l.state = 'running'
            WHERE s.run = e.ref AND s.position = e.position AND s.body IS NOT NULL;
        END IF;
    END IF;

    IF _tell_refs IS NOT NULL THEN
        INSERT INTO status AS s (run, body)
        SELECT e.ref, e.status FROM unnest(_tell_refs, _tell_tokens, _tells) AS e (ref, token, status)
        JOIN live AS l ON l.seq = e.ref AND l.token = e.token AND l.state = 'running'
        ON CONFLICT (run) DO UPDATE SET body = excluded.body;
        GET DIAGNOSTICS _count = ROW_COUNT;
        _odd := _odd OR _count < cardinality(_tell_refs);
    END IF;

    IF _end_refs IS NOT NULL THEN
        WITH removed AS (
            DELETE FROM live AS l
            USING unnest(_end_refs, _end_tokens, _end_states, _end_bodies, _end_causes) WITH ORDINALITY
                AS e (ref, token, state, body, cause, number)
            WHERE l.seq = e.ref AND l.token = e.token AND l.state = 'running'
            RETURNING
                l.seq, l.place, l.token, l.started_at, l.deadline, l.lane, l.attempt, l.crashes, l.ties, l.grp, l.session,
                l.slot, e.state, e.body, e.cause, e.number
        ),
        kept AS (
            INSERT INTO ended (
                seq, finish, finished_at, place, settled, started_at, deadline, lane, attempt, crashes, ties, state, cause,
                body
            )
            SELECT
                r.seq, nextval('finish'), now, r.place, r.token, r.started_at, r.deadline, r.lane, r.attempt, r.crashes,
                r.ties, r.state, r.cause, r.body
            FROM (SELECT * FROM removed ORDER BY number) AS r
        ),
        counted AS (
            INSERT INTO tally AS t (lane, shard, succeeded, failed, cancelled)
            SELECT
                r.lane, (_worker % 16)::smallint, count(*) FILTER (WHERE r.state = 'succeeded'),
                count(*) FILTER (WHERE r.state = 'failed'), count(*) FILTER (WHERE r.state = 'cancelled')
            FROM removed AS r GROUP BY r.lane ORDER BY r.lane
            ON CONFLICT (lane, shard) DO UPDATE SET
                succeeded = t.succeeded + excluded.succeeded, failed = t.failed + excluded.failed,
                cancelled = t.cancelled + excluded.cancelled
        )
        SELECT
            count(*) AS runs, coalesce(bit_or(r.ties), 0) AS ties, array_agg(r.seq) AS seqs,
            array_agg(r.grp) FILTER (WHERE r.slot > 0) AS groups,
            array_agg(r.session) FILTER (WHERE r.session IS NOT NULL) AS sessions
        INTO _kept
        FROM removed AS r;
        _odd := _odd OR _kept.runs < cardinality(_end_refs);
        IF _kept.runs > 0 THEN
            IF EXISTS (SELECT 1 FROM wait AS w WHERE w.what = 'run') OR _kept.ties & 98 <> 0 OR _kept.groups IS NOT NULL OR _kept.sessions IS NOT NULL THEN
                _ready := follow(now, _kept.seqs, _kept.ties, _kept.groups, _kept.sessions) OR _ready;
            END IF;
            _ready := _ready OR _head.limited;
            IF _kept.ties & 1 <> 0 THEN
                PERFORM tell_work(true);  -- A parent may be running, and watch for this.
            END IF;
            IF _head.listeners LIKE '%e%' THEN
                PERFORM pg_notify(channel(), 'e');
            END IF;
        END IF;
    END IF;

    IF _move_refs IS NOT NULL THEN
        SELECT m.moved, m.ready INTO _kept
        FROM move_on(
            now, _move_refs, _move_tokens, _move_tos, _move_bodies, _move_delays, _move_ats, _move_waits
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
        -- They may have made lanes.
        SELECT t.last_value INTO topology FROM topology AS t;
        _lanes := served(_worker);
        lanes := lanes_told(_lanes);
        _open := unpaused(_lanes);
    END IF;

    _brief := NOT _silent AND _end_refs IS NULL AND _move_refs IS NULL AND _fires IS NULL AND _save_starts IS NULL
        AND NOT _repeated AND coalesce(_head.timer > now, true) AND coalesce(_head.deadline > now, true)
        AND coalesce(_head.idle > now, true) AND NOT _head.recheck AND NOT (_draining AND _head.sessions > 0)
        AND NOT _head.limited AND _head.sessions = 0 AND (_slots <= 0 OR NOT _more);
    IF NOT (_silent OR _brief) THEN
        IF _draining AND _head.sessions > 0 THEN
            _ready := give_up(now, _worker) OR _ready;
        END IF;
        IF _head.recheck THEN
            _ready := catch_up(now) OR _ready;
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
        IF _strict THEN
            SELECT c.* INTO _outlook FROM claim_within(_clock, now, _worker, _open, _slots, _after, _token, _bytes) AS c;
            _already := _already + _outlook.claimed;
        ELSIF _slots > 0 AND cardinality(_open) > 0 THEN
            SELECT b.last_value + b.is_called::integer INTO rewind FROM rewind AS b;
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
        seen := seen(now, _watches);
    END IF;
    IF _head.cancelling OR NOT (_silent OR _brief) THEN
        SELECT json_agg(json_build_array(l.token, json_build_object('reason', l.cancelling, 'deadline', l.overdue)))::text
        INTO cancelled
        FROM live AS l WHERE l.worker = _worker AND l.state = 'running' AND l.cancelling IS NOT NULL;
    END IF;
    IF _silent OR _brief THEN
        -- Nothing has changed that would have to be looked at once more.
        next_at := least(_head.timer, _head.deadline, _head.slot);
        more := _more;
        IF _more AND (_head.limited OR (_head.sessions > 0 AND any_ready(_open, ARRAY[-1]))) THEN
            _strict := true;
            more := false;
            SELECT c.* INTO _outlook FROM claim_within(_clock, now, _worker, _open, 0, _after, _first, _bytes) AS c;
        END IF;
    ELSE
        SELECT
            least(
                (SELECT l.wake_at FROM live AS l WHERE l.wake_at IS NOT NULL ORDER BY l.wake_at LIMIT 1),
                (
                    SELECT l.deadline FROM live AS l WHERE l.deadline IS NOT NULL AND l.cancelling IS NULL
                    ORDER BY l.deadline LIMIT 1
                ),
                CASE WHEN _fires IS NULL THEN _head.slot ELSE (
                    SELECT s.next_slot FROM schedule AS s
                    WHERE s.next_slot > now AND NOT s.paused ORDER BY s.next_slot LIMIT 1
                ) END
            ),
            more OR floored IS TRUE OR (_slots <= 0 AND _floor_lanes IS NOT NULL) OR (NOT _strict AND EXISTS (
                SELECT 1 FROM unnest(_open) AS a (lane) CROSS JOIN unnest(_owners) AS o (owner)
                CROSS JOIN LATERAL (
                    SELECT 1 FROM live AS l
                    WHERE l.lane = a.lane AND l.owner = o.owner AND l.state = 'queued' AND l.held IS NULL LIMIT 1
                ) AS q
            ))
        INTO next_at, more;
    END IF;
    IF _head.due THEN
        due := due(now, 10, _skips);
    END IF;
    IF _strict THEN
        more := more OR _outlook.more;
        next_at := least(next_at, _outlook.opens_at);
    END IF;
    IF _head.listeners LIKE '%s%' AND (
        _ready OR tokens IS NOT NULL OR _end_refs IS NOT NULL OR _move_refs IS NOT NULL OR _tell_refs IS NOT NULL
    ) THEN
        PERFORM pg_notify(channel(), 's');
    END IF;
    IF (_ready AND EXISTS (SELECT 1 FROM live AS l WHERE l.state = 'queued' AND l.held IS NULL))
        OR next_at < coalesce(least(_head.timer, _head.deadline), 9223372036854775807)
    THEN
        PERFORM tell_work();
    END IF;
    -- What somebody else had in hand. Nobody is told of it: all would tell each other, as long as it is there.
    IF NOT (_silent OR _brief) AND EXISTS (SELECT 1 FROM recheck) THEN
        next_at := least(next_at, now + 50);
    END IF;
END $$;

INSERT INTO migration (version, name, oldest) VALUES (5, '0005_exchange', 1);

COMMIT;
