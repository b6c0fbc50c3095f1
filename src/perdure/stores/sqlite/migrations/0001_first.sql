-- The first schema. `run` is narrow and holds hot state only: bodies live in tables of their own, so that a change
-- of state never rewrites a payload. Everything of a run is clustered under its `seq`.

-- One row for each (queue, workflow) that was ever used. Lanes are never removed.
CREATE TABLE lane (
    id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    workflow TEXT NOT NULL,
    -- How many runs it has, and how many of them have ended, so that counting does not walk these: whoever makes runs
    -- adds them, and triggers do the rest.
    runs INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    UNIQUE (queue, workflow)
);

CREATE TABLE run (
    seq INTEGER PRIMARY KEY,              -- the order of enqueueing
    id TEXT NOT NULL UNIQUE,
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    held TEXT,                            -- why a queued run may not be claimed; NULL when it may
    worker INTEGER,                       -- the owner while it is running
    token INTEGER,                        -- of the claim that owns it, or owned it last
    settled INTEGER,                      -- token of the last settle that was accepted
    attempt INTEGER NOT NULL DEFAULT 1,
    crashes INTEGER NOT NULL DEFAULT 0,
    max_crashes INTEGER NOT NULL,
    cut_off INTEGER NOT NULL DEFAULT 0,
    wake_at INTEGER,                      -- when its timer is due; NULL as soon as it is queued
    deadline INTEGER,
    cancelling TEXT,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,                  -- NULL exactly while the state is not final
    parent TEXT,
    finish INTEGER,                       -- the order of finishing
    kept INTEGER,                         -- 1 when its parent lived when it was to be pruned
    batch TEXT,
    unique_key TEXT,
    debounced INTEGER                     -- 1 when it gives its key up as soon as it begins
);

-- The ready set: claimable runs, nothing else, in the order in which they are claimed.
CREATE INDEX run_ready ON run (lane, priority, seq) WHERE state = 'queued' AND held IS NULL;
CREATE INDEX run_timer ON run (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX run_deadline ON run (deadline)
    WHERE deadline IS NOT NULL AND finished_at IS NULL AND cancelling IS NULL;
CREATE INDEX run_owned ON run (worker, token) WHERE state = 'running';
CREATE INDEX run_cancelling ON run (worker) WHERE state = 'running' AND cancelling IS NOT NULL;
CREATE INDEX run_away ON run (lane, state) WHERE state IN ('scheduled', 'waiting');
CREATE INDEX run_child ON run (parent) WHERE parent IS NOT NULL;
CREATE INDEX run_failed ON run (state) WHERE state = 'failed';
CREATE INDEX run_prunable ON run (lane, state, finish, finished_at) WHERE finished_at IS NOT NULL AND kept IS NULL;
CREATE INDEX run_kept ON run (parent) WHERE kept IS NOT NULL;
CREATE INDEX run_batch ON run (batch) WHERE batch IS NOT NULL;
-- The live runs of a key come first: those have no end.
CREATE INDEX run_unique ON run (unique_key, finished_at) WHERE unique_key IS NOT NULL;

-- `size` stands before `body`, so that sizes are summed without reading the bodies.
CREATE TABLE input (
    run INTEGER PRIMARY KEY,
    size INTEGER NOT NULL,
    body TEXT NOT NULL
);

-- The result or error of a run that ended, or the last error of one that backs off.
CREATE TABLE outcome (
    run INTEGER PRIMARY KEY,
    body TEXT NOT NULL
);

CREATE TABLE checkpoint (
    run INTEGER NOT NULL,
    position INTEGER NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    outcome TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    digest TEXT NOT NULL,
    at INTEGER,
    started_at INTEGER NOT NULL,
    saved_at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    body TEXT,
    PRIMARY KEY (run, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX checkpoint_key ON checkpoint (run, key);

-- A consumed signal stays without its body: its id is remembered, so that a late repetition is not a new signal, and
-- its position is not given to another one.
CREATE TABLE signal (
    run INTEGER NOT NULL,
    position INTEGER NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    body TEXT,
    PRIMARY KEY (run, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX signal_id ON signal (run, id);
CREATE INDEX signal_waiting ON signal (run, position) WHERE body IS NOT NULL;
CREATE INDEX signal_named ON signal (run, name, position) WHERE body IS NOT NULL;

-- What a run is parked for. The rows stay until its next settle: the claim that follows tells which came true.
CREATE TABLE wait (
    run INTEGER NOT NULL,
    key TEXT NOT NULL,
    what TEXT NOT NULL,
    target TEXT NOT NULL,
    at INTEGER,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;
CREATE INDEX wait_run ON wait (target) WHERE what = 'run';

-- Whatever ends a run (a settle, a cancel, a deadline, poison) wakes those that are parked for it.
CREATE TRIGGER run_ended AFTER UPDATE OF finished_at ON run
WHEN new.finished_at IS NOT NULL AND old.finished_at IS NULL AND EXISTS (SELECT 1 FROM wait)
BEGIN
    DELETE FROM wait WHERE run = new.seq;
    UPDATE run SET state = 'queued', wake_at = NULL
    WHERE state = 'waiting' AND seq IN (SELECT w.run FROM wait AS w WHERE w.what = 'run' AND w.target = new.id);
END;

-- The last number that was given out to a run that finished.
CREATE TABLE finish (last INTEGER NOT NULL);
INSERT INTO finish (last) VALUES (0);

-- What a run said of its progress last.
CREATE TABLE status (
    run INTEGER PRIMARY KEY,
    body TEXT NOT NULL
);

-- Why a failed run failed, for grouping.
CREATE TABLE failure (
    run INTEGER PRIMARY KEY,
    cause TEXT NOT NULL
);
CREATE INDEX failure_cause ON failure (cause);

CREATE TABLE label (
    run INTEGER NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;
CREATE INDEX label_value ON label (key, value, run);

-- Runs that end together. Its runs bear its id; `callback` is the run that is parked until all of them have ended.
CREATE TABLE batch (
    id TEXT PRIMARY KEY,
    total INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    callback TEXT
) WITHOUT ROWID;
CREATE INDEX batch_callback ON batch (callback) WHERE callback IS NOT NULL;

CREATE TRIGGER batch_counts AFTER UPDATE OF finished_at ON run
WHEN new.batch IS NOT NULL AND (new.finished_at IS NULL) <> (old.finished_at IS NULL)
BEGIN
    UPDATE batch SET
        succeeded = succeeded + (new.state = 'succeeded') - (old.state = 'succeeded'),
        failed = failed + (new.state = 'failed') - (old.state = 'failed'),
        cancelled = cancelled + (new.state = 'cancelled') - (old.state = 'cancelled')
    WHERE id = new.batch;
    UPDATE run SET state = 'queued', wake_at = NULL
    WHERE state = 'waiting'
        AND id = (SELECT callback FROM batch WHERE id = new.batch AND succeeded + failed + cancelled = total);
END;

-- Recurring starts, by name; `spec` is the whole schedule as JSON, `timing` what its slots are made of.
CREATE TABLE schedule (
    name TEXT PRIMARY KEY,
    spec TEXT NOT NULL,
    timing TEXT NOT NULL,
    declared INTEGER NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0,
    next_slot INTEGER,
    last_slot INTEGER,
    last_run TEXT
) WITHOUT ROWID;
CREATE INDEX schedule_last ON schedule (last_run) WHERE last_run IS NOT NULL;
CREATE INDEX schedule_next ON schedule (next_slot) WHERE next_slot IS NOT NULL AND paused = 0;

CREATE TRIGGER run_counted AFTER UPDATE OF finished_at ON run
WHEN (new.finished_at IS NULL) <> (old.finished_at IS NULL)
BEGIN
    UPDATE lane SET
        succeeded = succeeded + (new.state = 'succeeded') - (old.state = 'succeeded'),
        failed = failed + (new.state = 'failed') - (old.state = 'failed'),
        cancelled = cancelled + (new.state = 'cancelled') - (old.state = 'cancelled')
    WHERE id = new.lane;
END;

-- Nothing of a run outlives it: whatever removes one removes all that is kept under its number.
CREATE TRIGGER run_removed AFTER DELETE ON run
BEGIN
    DELETE FROM input WHERE run = old.seq;
    DELETE FROM outcome WHERE run = old.seq;
    DELETE FROM checkpoint WHERE run = old.seq;
    DELETE FROM signal WHERE run = old.seq;
    DELETE FROM wait WHERE run = old.seq;
    DELETE FROM status WHERE run = old.seq;
    DELETE FROM failure WHERE run = old.seq;
    DELETE FROM label WHERE run = old.seq;
    UPDATE schedule SET last_run = NULL WHERE last_run = old.id;
    -- A batch goes with the last of its runs and its callback.
    DELETE FROM batch
    WHERE (id = old.batch OR callback = old.id)
        AND NOT EXISTS (SELECT 1 FROM run WHERE batch = batch.id)
        AND NOT EXISTS (SELECT 1 FROM run WHERE id = batch.callback);
    UPDATE lane SET
        runs = runs - 1,
        succeeded = succeeded - (old.state = 'succeeded'),
        failed = failed - (old.state = 'failed'),
        cancelled = cancelled - (old.state = 'cancelled')
    WHERE id = old.lane;
END;

-- Ids of workers are never used again: tokens are made of them. Names may be there twice: a registration whose reply
-- was lost is repeated.
CREATE TABLE worker (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    queues TEXT NOT NULL,
    workflows TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
);

CREATE INDEX worker_name ON worker (name);

-- The lanes that exist and that a worker serves, so that a claim walks no others.
CREATE TABLE worker_lane (
    worker INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    PRIMARY KEY (worker, lane)
) WITHOUT ROWID;

-- Sockets of those who want to be told of changes.
CREATE TABLE listener (
    path TEXT PRIMARY KEY,
    topic TEXT NOT NULL,
    pid INTEGER NOT NULL
) WITHOUT ROWID;

-- Marks the file as a store ("PERD") of this version.
PRAGMA application_id = 1346720324;
PRAGMA user_version = 1;
