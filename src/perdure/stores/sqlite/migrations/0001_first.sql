-- The first schema. `run` is narrow and holds hot state only: bodies live in tables of their own, so that a change
-- of state never rewrites a payload. Everything of a run is clustered under its `seq`.

-- One row for each (queue, workflow) that was ever used. Lanes are never removed.
CREATE TABLE lane (
    id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    workflow TEXT NOT NULL,
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
    cancelling TEXT,                      -- why it is to be cancelled; NULL when it is not
    overdue INTEGER NOT NULL DEFAULT 0,   -- whether that is for its deadline; means nothing without `cancelling`
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,                  -- NULL exactly while the state is not final
    parent TEXT
);

-- The ready set: claimable runs, nothing else, in the order in which they are claimed.
CREATE INDEX run_ready ON run (lane, priority, seq) WHERE state = 'queued' AND held IS NULL;
CREATE INDEX run_timer ON run (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX run_deadline ON run (deadline)
    WHERE deadline IS NOT NULL AND finished_at IS NULL AND cancelling IS NULL;
CREATE INDEX run_owned ON run (worker, token) WHERE state = 'running';
CREATE INDEX run_cancelling ON run (worker) WHERE state = 'running' AND cancelling IS NOT NULL;
CREATE INDEX run_child ON run (parent) WHERE parent IS NOT NULL;
CREATE INDEX run_failed ON run (state) WHERE state = 'failed';

-- `size` stands before `body`, so that sizes are summed without reading the bodies.
CREATE TABLE input (
    run INTEGER PRIMARY KEY,
    size INTEGER NOT NULL,
    body TEXT NOT NULL,
    first TEXT                            -- what the run was started with, when it has continued with another one
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

-- `body` is there while the signal waits. The checkpoint that consumes it moves it to `taken`, from where it comes back
-- if that is cleared. When the run continues it stays without either: its id is remembered for a while, so that a late
-- repetition is not a new signal.
CREATE TABLE signal (
    run INTEGER NOT NULL,
    position INTEGER NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    body TEXT,
    taken TEXT,
    taken_by TEXT,                        -- the key of the checkpoint
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
