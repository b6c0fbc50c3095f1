-- The tables. A run has its facts in `run`, its state in `live` until it ends, and then in `ended`: what changes often
-- stays small, whatever the history grows to. Names are looked up by the search path of whoever applies this file.

BEGIN;

CREATE TABLE migration (
    version int PRIMARY KEY, name text NOT NULL, oldest int NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
);

-- Numbers of runs, and their places: a run that a group held up takes its place when it is let through.
CREATE SEQUENCE place;
-- The order in which checkpoints were accepted, and in which runs ended.
CREATE SEQUENCE position;
CREATE SEQUENCE finish;
-- Moves on when there is a new lane: workers look which lanes are theirs.
CREATE SEQUENCE topology;
-- Moves on when runs become ready at places that others may have passed: claims begin at the first place again then.
CREATE SEQUENCE rewind;

-- One row for each (queue, workflow, version) that was ever used, or two: nobody waits for a transaction of an application
-- that makes one. Lanes are never removed.
CREATE TABLE lane (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    workflow text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL     -- that its runs are pinned to; '' when any will do
);
CREATE INDEX lane_name ON lane (queue, workflow, version);

-- How many runs a lane has, and how many of them have ended, so that counting does not walk these. In shards, so that
-- those who write at the same time do not wait for each other.
CREATE TABLE tally (
    lane integer NOT NULL,
    shard smallint NOT NULL,
    runs bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (lane, shard)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- What is known of a run from its start.
CREATE TABLE run (
    seq bigint PRIMARY KEY,               -- the order of enqueueing
    id text COLLATE "C" NOT NULL UNIQUE,
    lane integer NOT NULL,
    priority integer NOT NULL,
    max_crashes integer NOT NULL,
    created_at bigint NOT NULL,
    ties integer NOT NULL,                -- see `live`
    grp bigint,
    session bigint,
    keep boolean,                         -- whether it keeps its slot while it waits or backs off
    debounced boolean,                    -- whether it gives its key up as soon as it begins
    parent text COLLATE "C",
    batch text COLLATE "C",
    unique_key text COLLATE "C",
    schedule text COLLATE "C",            -- that made it
    input text NOT NULL,
    first text                            -- what the run was started with, when it has continued with another one
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX run_child ON run (parent, seq) WHERE parent IS NOT NULL;
CREATE INDEX run_batch ON run (batch, seq) WHERE batch IS NOT NULL;
CREATE INDEX run_group ON run (grp, seq) WHERE grp IS NOT NULL;
CREATE INDEX run_session ON run (session) WHERE session IS NOT NULL;
CREATE INDEX run_unique ON run (unique_key, created_at) WHERE unique_key IS NOT NULL;

-- The state of a run that has not ended.
CREATE TABLE live (
    seq bigint PRIMARY KEY,
    place bigint,                         -- in the order of its lane; NULL while its group has not admitted it yet
    worker bigint,                        -- the owner while it is running
    token bigint,                         -- of the claim that owns it, or owned it last
    settled bigint,                       -- token of the last settle that was accepted
    wake_at bigint,                       -- when its timer is due; NULL as soon as it is queued
    deadline bigint,
    due bigint,                           -- of one that waits behind others to begin: not before then, and the time
    timeout bigint,                       -- that it has from when it may; NULL as soon as it is queued or scheduled
    started_at bigint,
    -- Who may claim it: 0 anybody, -1 whoever may own one more session, a worker. Short, since tokens leave fewer bits than
    -- these to the ids of workers.
    owner integer NOT NULL DEFAULT 0,
    lane integer NOT NULL,
    priority integer NOT NULL,
    attempt integer NOT NULL DEFAULT 1,
    crashes integer NOT NULL DEFAULT 0,
    max_crashes integer NOT NULL,
    -- What it has that few have: 1 a parent, 2 a batch, 4 a unique key, 8 labels, 16 signals, 32 a schedule, 64 waits,
    -- 128 runs that prune passed over because of it.
    ties integer NOT NULL,
    grp bigint,
    session bigint,
    slot smallint,                        -- in its group: 0 takes no part, 1 has a slot, 2 is in the line for one
    seat smallint,                        -- in its session: 0 is held otherwise, 1 is ready, 2 is in the line, 3 runs
    keep boolean,
    debounced boolean,
    cut_off boolean NOT NULL DEFAULT false,
    overdue boolean NOT NULL DEFAULT false,
    state text NOT NULL,
    held text,                            -- why a queued run may not be claimed, or a begun one is put off; NULL when it may
    cancelling text,                      -- why it is to be cancelled; NULL when it is not
    unique_key text COLLATE "C",
    schedule text COLLATE "C",            -- that made it
    error text                            -- the last error, while it backs off
) WITH (
    fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 1
);
-- The ready set: claimable runs, nothing else, in the order in which they are claimed. Those of sessions are apart: the
-- others are many, and their entries small. Places ascend, so its pages are filled one after the other.
CREATE INDEX live_ready ON live (lane, priority, place) WITH (fillfactor = 100)
WHERE state = 'queued' AND held IS NULL AND owner = 0;
CREATE INDEX live_ready_session ON live (lane, owner, priority, place)
WHERE state = 'queued' AND held IS NULL AND owner <> 0;
CREATE INDEX live_timer ON live (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX live_deadline ON live (deadline) WHERE deadline IS NOT NULL AND cancelling IS NULL;
CREATE INDEX live_owned ON live (worker, token, lane) WHERE state = 'running';
CREATE INDEX live_cancelling ON live (worker) WHERE state = 'running' AND cancelling IS NOT NULL;
CREATE INDEX live_away ON live (lane, state) WHERE state IN ('scheduled', 'waiting');
CREATE INDEX live_schedule ON live (schedule, seq) WHERE schedule IS NOT NULL;
CREATE INDEX live_unique ON live (unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX live_holder ON live (grp, priority, seq) WHERE slot = 1;
CREATE INDEX live_line ON live (grp, priority, seq) WHERE slot = 2;
CREATE INDEX live_seat ON live (session, seat, priority, place) WHERE seat IS NOT NULL;

-- How a run ended.
CREATE TABLE ended (
    seq bigint PRIMARY KEY,
    finish bigint NOT NULL,               -- the order of finishing
    finished_at bigint NOT NULL,
    place bigint,
    settled bigint,
    started_at bigint,
    deadline bigint,
    lane integer NOT NULL,
    attempt integer NOT NULL,
    crashes integer NOT NULL,
    ties integer NOT NULL,
    kept text COLLATE "C",                -- what lived when it was to be pruned: 'run:' and its parent's id, or
                                          -- 'batch:' and its batch's
    state text NOT NULL,
    cause text,                           -- of a failure: type of the error and where it was raised
    body text                             -- the result or the error
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX ended_prunable ON ended (lane, state, finish) WHERE kept IS NULL;
CREATE INDEX ended_kept ON ended (kept, lane, state) WHERE kept IS NOT NULL;
CREATE INDEX ended_failed ON ended (seq) WHERE state = 'failed';
CREATE INDEX ended_cause ON ended (cause, seq) WHERE cause IS NOT NULL;

-- What lived when runs were passed over because of it (see `kept`), and does not any more.
CREATE TABLE over (
    kept text COLLATE "C" PRIMARY KEY
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE checkpoint (
    run bigint NOT NULL,
    position bigint NOT NULL,
    at bigint,
    started_at bigint NOT NULL,
    saved_at bigint NOT NULL,
    attempts integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    outcome text NOT NULL,
    digest text NOT NULL,
    body text,
    PRIMARY KEY (run, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX checkpoint_position ON checkpoint (run, position);

-- `body` is there while the signal waits. The checkpoint that consumes it moves it to `taken`, from where it comes back
-- if that is cleared. When the run continues it stays without either: its id is remembered for a while, so that a late
-- repetition is not a new signal.
CREATE TABLE signal (
    run bigint NOT NULL,
    position bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    body text,
    taken text,
    taken_by text COLLATE "C",            -- the key of the checkpoint
    PRIMARY KEY (run, position)
);
CREATE UNIQUE INDEX signal_id ON signal (run, id);
CREATE INDEX signal_waiting ON signal (run, position) WHERE body IS NOT NULL;
CREATE INDEX signal_named ON signal (run, name, position) WHERE body IS NOT NULL;

-- What a run is parked for. The rows stay until its next settle: the claim that follows tells which came true.
CREATE TABLE wait (
    run bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    what text NOT NULL,
    target text COLLATE "C" NOT NULL,
    at bigint,
    PRIMARY KEY (run, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX wait_run ON wait (target) WHERE what = 'run';

-- What a run said of its progress last.
CREATE TABLE status (
    run bigint PRIMARY KEY,
    body text NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE label (
    run bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    PRIMARY KEY (run, key)
);
CREATE INDEX label_value ON label (key, value, run);

-- Runs that end together. Its runs bear its id; `callback` is the run that is parked until all of them have ended.
CREATE TABLE batch (
    id text COLLATE "C" PRIMARY KEY,
    total bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    items bigint NOT NULL DEFAULT 0,      -- that it was opened with; those whose runs were there are not of it
    passed boolean NOT NULL DEFAULT false,-- whether prune passed over runs of it
    empty_since bigint,                   -- when it was opened with nothing, so that no run takes it along
    callback text COLLATE "C"
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX batch_empty ON batch (empty_since) WHERE empty_since IS NOT NULL;
CREATE INDEX batch_callback ON batch (callback) WHERE callback IS NOT NULL;

-- Recurring starts, by name; `spec` is the whole schedule as JSON, `timing` what its slots are made of.
CREATE TABLE schedule (
    name text COLLATE "C" PRIMARY KEY,
    spec text NOT NULL,
    timing text NOT NULL,
    declared boolean NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    next_slot bigint,
    last_slot bigint,
    last_run text COLLATE "C"
) WITH (fillfactor = 50);
CREATE INDEX schedule_last ON schedule (last_run) WHERE last_run IS NOT NULL;
CREATE INDEX schedule_next ON schedule (next_slot) WHERE next_slot IS NOT NULL AND NOT paused;

-- One row for each group that any run belongs to.
CREATE TABLE grp (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    asked integer NOT NULL,               -- the limit that the start which made it brought
    most integer NOT NULL,                -- the limit that holds
    paused boolean NOT NULL,
    UNIQUE (key, queue)
);

-- One row for each session that has an owner, or that any run belongs to.
CREATE TABLE session (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    owner bigint,                         -- the worker that has it
    idle_until bigint,                    -- NULL while a run of it is queued or running
    UNIQUE (key, queue)
);
CREATE INDEX session_owned ON session (owner, idle_until) WHERE owner IS NOT NULL;
CREATE INDEX session_idle ON session (idle_until) WHERE idle_until IS NOT NULL;

-- What the next exchange does: looks after groups and sessions that somebody could not, since another one was at them;
-- and what transactions of applications leave to it, since these must not hold what workers wait for.
CREATE TABLE recheck (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    grp bigint,
    session bigint,
    word jsonb                            -- see take_in()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- What was ever set for a scope; the group's limit and pause are copied to its row in `grp`.
CREATE TABLE scope (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    running integer,
    rate_count bigint,
    rate_period bigint,
    rate_burst bigint,
    debt bigint NOT NULL DEFAULT 0,       -- of the rate, at a time: in parts of a run, `rate_period` of them are one
    debt_at bigint NOT NULL DEFAULT 0,
    budget boolean NOT NULL DEFAULT false,-- whether claims have to look at it
    chosen boolean NOT NULL DEFAULT false,-- whether limits were ever set, be it to none
    paused boolean NOT NULL DEFAULT false,
    revision bigint NOT NULL,
    who text NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (kind, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX scope_budget ON scope (kind, name) WHERE budget;
CREATE INDEX scope_paused ON scope (kind, name) WHERE paused;

CREATE TABLE revision (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    who text NOT NULL,
    at bigint NOT NULL,
    old text NOT NULL,
    new text NOT NULL,
    was_paused boolean NOT NULL,
    paused boolean NOT NULL
);
CREATE INDEX revision_scope ON revision (kind, name, number);

-- Ids of workers are never used again: tokens are made of them. Names may be there twice: a registration whose reply
-- was lost is repeated. An exchange of a worker locks its row here; what renews the lease writes another one.
CREATE TABLE worker (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    queues text[] NOT NULL,
    workflows text[] NOT NULL,
    versions text[] NOT NULL,             -- of pairs: workflow, version, workflow, version …
    sessions integer NOT NULL,
    session_idle bigint NOT NULL,
    concurrency integer NOT NULL,
    started_at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX worker_name ON worker (name);

CREATE TABLE lease (
    worker bigint PRIMARY KEY,
    until bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Processes that want to be told of ends or of progress; those that want to be told of work are known as workers.
CREATE TABLE listener (
    id text COLLATE "C" NOT NULL,
    topic text NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (topic, id)
) WITH (fillfactor = 50);

-- The channel on which ends are told with their results. Anybody in the database may listen to a channel whose name he
-- knows: this one those know who may read the schema. It has one row.
CREATE TABLE confidential (channel text NOT NULL);
INSERT INTO confidential (channel) VALUES ('perdure_' || replace(gen_random_uuid()::text, '-', ''));

INSERT INTO migration (version, name, oldest) VALUES (1, '0001_tables', 1);

COMMIT;
