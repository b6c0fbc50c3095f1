-- A store with {number} runs of each kind, as its functions would have left them. A worker that
-- never registered owns what is running.
WITH made AS (INSERT INTO lane (queue, workflow, version) VALUES ('default', 'ship', '') RETURNING id AS lane)
INSERT INTO run (seq, id, lane, priority, max_crashes, created_at, ties, input, parent)
SELECT i, 'filled-' || i, made.lane, 0, 5, {now}, 0, 'null', CASE WHEN i % 50 = 0 THEN 'filled-' || i - 1 END
FROM made, generate_series(1, 5 * {number}) AS i;

INSERT INTO live (seq, place, lane, priority, max_crashes, ties, state, worker, token, started_at, wake_at)
SELECT
    seq, seq, lane, 0, 5, 0, k.state, CASE k.state WHEN 'running' THEN 4000000 END,
    CASE k.state WHEN 'running' THEN (4000000::bigint << 40) + seq END, CASE k.state WHEN 'running' THEN {now} END,
    CASE k.state WHEN 'scheduled' THEN {now} + 86400000 + seq END
FROM run JOIN (VALUES (0, 'queued'), (1, 'scheduled'), (2, 'waiting'), (3, 'running')) AS k (part, state)
    ON k.part = (seq - 1) / {number} AND (k.part < 3 OR seq % 10 = 0);

INSERT INTO ended (seq, finish, finished_at, place, started_at, lane, attempt, crashes, ties, state, cause, body)
SELECT
    seq, nextval('finish'), {now}, seq, {now}, lane, 1, 0, 0, CASE WHEN seq % 10 = 0 THEN 'failed' ELSE 'succeeded' END,
    CASE WHEN seq % 10 = 0 THEN 'ValueError at ship' END, 'null'
FROM run WHERE seq > 3 * {number} AND seq NOT IN (SELECT l.seq FROM live AS l);

INSERT INTO checkpoint (run, position, started_at, saved_at, attempts, key, kind, outcome, digest, body)
SELECT seq, nextval('position'), {now}, {now}, 1, 'step:1', 'step', 'ok', '', 'null' FROM run WHERE seq > {number};

INSERT INTO label (run, key, value) SELECT seq, 'color', 'c' || seq % 100 FROM run;

INSERT INTO tally (lane, shard, runs, succeeded, failed)
SELECT r.lane, 0, count(*), count(*) FILTER (WHERE e.state = 'succeeded'), count(*) FILTER (WHERE e.state = 'failed')
FROM run AS r LEFT JOIN ended AS e ON e.seq = r.seq GROUP BY r.lane;

SELECT setval('place', 5 * {number} + 1);
