-- What lies in the store, by scene, as its own functions would have left it: {number} runs each. No locks that matter:
-- nobody else is there. Worker 1 is the one that others' runs belong to, worker 2 the one that claims.

-- name: setup
INSERT INTO lane (queue, workflow, version) VALUES ('default', 'work', ''), ('other', 'work', ''), ('default', 'elsewhere', '')
ON CONFLICT DO NOTHING;
SELECT nextval('topology');
-- Not what IMMUTABLE is for, but so it is called once for each statement.
CREATE FUNCTION pg_temp.lane(_queue text, _workflow text) RETURNS integer LANGUAGE sql IMMUTABLE AS
$$ SELECT id FROM lane WHERE queue = _queue AND workflow = _workflow AND version = '' $$;
CREATE FUNCTION pg_temp.facts(_number bigint, _lane integer) RETURNS TABLE (seq bigint, place bigint) LANGUAGE sql AS $$
    WITH made AS (
        INSERT INTO run (seq, id, lane, priority, max_crashes, created_at, ties, input)
        SELECT nextval('place'), gen_random_uuid(), _lane, 0, 5, clock_ms(), 0, '{{"order": 17}}'
        FROM generate_series(1, _number)
        RETURNING seq
    ),
    counted AS (
        INSERT INTO tally AS t (lane, shard, runs) VALUES (_lane, 0, _number)
        ON CONFLICT (lane, shard) DO UPDATE SET runs = t.runs + excluded.runs
    )
    SELECT m.seq, row_number() OVER (ORDER BY m.seq) FROM made AS m
$$;

-- name: free
INSERT INTO live (seq, place, lane, priority, max_crashes, ties, state)
SELECT f.seq, f.seq, pg_temp.lane('default', 'work'), 0, 5, 0, 'queued'
FROM pg_temp.facts({number}, pg_temp.lane('default', 'work')) AS f;

-- name: claimed
INSERT INTO live (seq, place, lane, priority, max_crashes, ties, state, worker, token, started_at)
SELECT f.seq, f.seq, pg_temp.lane('default', 'work'), 0, 5, 0, 'running', 1, (1::bigint << 40) + f.place, {now}
FROM pg_temp.facts({number}, pg_temp.lane('default', 'work')) AS f;

-- name: future
INSERT INTO live (seq, place, lane, priority, max_crashes, ties, state, wake_at)
SELECT f.seq, f.seq, pg_temp.lane('default', 'work'), 0, 5, 0, 'scheduled', {now} + 86400000 + f.place
FROM pg_temp.facts({number}, pg_temp.lane('default', 'work')) AS f;

-- name: queue
INSERT INTO live (seq, place, lane, priority, max_crashes, ties, state)
SELECT f.seq, f.seq, pg_temp.lane('other', 'work'), 0, 5, 0, 'queued'
FROM pg_temp.facts({number}, pg_temp.lane('other', 'work')) AS f;

-- name: unknown
INSERT INTO live (seq, place, lane, priority, max_crashes, ties, state)
SELECT f.seq, f.seq, pg_temp.lane('default', 'elsewhere'), 0, 5, 0, 'queued'
FROM pg_temp.facts({number}, pg_temp.lane('default', 'elsewhere')) AS f;

-- name: sessions
INSERT INTO session (key, queue, owner) SELECT 'session ' || i, 'default', 1 FROM generate_series(1, 100) AS i;
INSERT INTO live (seq, place, lane, priority, max_crashes, ties, state, held, owner, session, seat)
SELECT
    f.seq, f.seq, pg_temp.lane('default', 'work'), 0, 5, 0, 'queued', CASE WHEN f.place > 6400 THEN 'session' END, 1,
    s.id, CASE WHEN f.place > 6400 THEN 2 ELSE 1 END
FROM pg_temp.facts({number}, pg_temp.lane('default', 'work')) AS f
JOIN session AS s ON s.key = 'session ' || f.place % 100 + 1;
UPDATE run AS r SET session = l.session FROM live AS l WHERE l.seq = r.seq AND l.session IS NOT NULL;

-- name: groups
INSERT INTO grp (key, queue, asked, most, paused)
SELECT 'group ' || i, 'default', 1, 1, false FROM generate_series(1, 100) AS i;
INSERT INTO live (
    seq, place, lane, priority, max_crashes, ties, state, held, worker, token, started_at, grp, slot, keep
)
SELECT
    f.seq, CASE WHEN f.place <= 100 THEN f.seq END, pg_temp.lane('default', 'work'), 0, 5, 0,
    CASE WHEN f.place <= 100 THEN 'running' ELSE 'queued' END, CASE WHEN f.place > 100 THEN 'group' END,
    CASE WHEN f.place <= 100 THEN 1 END, CASE WHEN f.place <= 100 THEN (1::bigint << 40) + f.place END,
    CASE WHEN f.place <= 100 THEN {now} END, g.id, CASE WHEN f.place <= 100 THEN 1 ELSE 2 END, true
FROM pg_temp.facts({number}, pg_temp.lane('default', 'work')) AS f
JOIN grp AS g ON g.key = 'group ' || f.place % 100 + 1;
UPDATE run AS r SET grp = l.grp FROM live AS l WHERE l.seq = r.seq AND l.grp IS NOT NULL;

-- name: finished
INSERT INTO ended (seq, finish, finished_at, place, settled, started_at, lane, attempt, crashes, ties, state, body)
SELECT
    f.seq, nextval('finish'), {now} - 86400000, f.seq, (1::bigint << 40) + f.place, {now}, pg_temp.lane('default', 'work'), 1, 0, 0,
    'succeeded', '{{"done": true}}'
FROM pg_temp.facts({number}, pg_temp.lane('default', 'work')) AS f;
UPDATE tally SET succeeded = succeeded + {number} WHERE lane = pg_temp.lane('default', 'work') AND shard = 0;

-- name: expired
INSERT INTO live (seq, place, lane, priority, max_crashes, ties, state, worker, token, started_at)
SELECT f.seq, f.seq, pg_temp.lane('default', 'work'), 0, 5, 0, 'running', 1, (1::bigint << 40) + f.place, {now}
FROM pg_temp.facts({number}, pg_temp.lane('default', 'work')) AS f;
UPDATE lease SET until = {now} + {lease} WHERE worker = 1;

-- name: claim_all
UPDATE live SET state = 'running', worker = 1, token = (1::bigint << 40) + seq, started_at = {now} WHERE state = 'queued';

-- name: end_all
WITH gone AS (DELETE FROM live WHERE state = 'running' RETURNING seq, place, token, started_at, lane)
INSERT INTO ended (seq, finish, finished_at, place, settled, started_at, lane, attempt, crashes, ties, state, body)
SELECT seq, nextval('finish'), {now}, place, token, started_at, lane, 1, 0, 0, 'succeeded', '{{"done": true}}' FROM gone;
