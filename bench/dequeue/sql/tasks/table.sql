-- A queue as the layouts that are compared with ours have it: one table, a task is claimed by a token and a lease, and
-- removed when it is done.
CREATE TABLE task (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body text NOT NULL,
    queue text NOT NULL DEFAULT 'default',
    session text,
    visible_at bigint NOT NULL DEFAULT 0,
    lock_token text,
    locked_until bigint,
    attempts integer NOT NULL DEFAULT 0
);
CREATE INDEX task_visible ON task (visible_at, lock_token);
CREATE INDEX task_token ON task (lock_token, id);
CREATE INDEX task_session ON task (session);
CREATE INDEX task_queue ON task (queue);

CREATE TABLE owned_session (id text PRIMARY KEY, worker text NOT NULL, until bigint NOT NULL);
