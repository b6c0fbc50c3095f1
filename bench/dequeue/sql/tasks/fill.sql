-- What lies in the table, by scene: {number} rows each. No locks that matter: nobody else is there.

-- name: free
INSERT INTO task (body) SELECT '{{}}' FROM generate_series(1, {number});

-- name: claimed
INSERT INTO task (body, lock_token, locked_until)
SELECT '{{}}', md5(i::text), {now} + 86400000 FROM generate_series(1, {number}) AS i;

-- name: future
INSERT INTO task (body, visible_at) SELECT '{{}}', {now} + 86400000 FROM generate_series(1, {number});

-- name: queue
INSERT INTO task (body, queue) SELECT '{{}}', 'other' FROM generate_series(1, {number});

-- name: sessions
INSERT INTO owned_session SELECT 'session ' || i, 'another', {now} + 86400000 FROM generate_series(1, 100) AS i;
INSERT INTO task (body, session) SELECT '{{}}', 'session ' || i % 100 + 1 FROM generate_series(1, {number}) AS i;

-- name: expired
INSERT INTO task (body, lock_token, locked_until)
SELECT '{{}}', md5(i::text), {now} + {lease} FROM generate_series(1, {number}) AS i;
