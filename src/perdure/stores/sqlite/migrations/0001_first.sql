-- The first schema. `run` is narrow and holds hot state only: bodies live in tables of their own, so that a change
-- of state never rewrites a payload. Everything of a run is clustered under its `seq`.

-- One row for each (queue, workflow, version) that was ever used. Lanes are never removed.
CREATE TABLE lane (
    id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    workflow TEXT NOT NULL,
    version TEXT NOT NULL,                -- that its runs are pinned to; '' when any will do
    paused INTEGER NOT NULL DEFAULT 0,    -- whether its queue, its workflow or the namespace is paused
    -- How many runs it has, and how many of them are running or have ended, so that counting does not walk these:
    -- whoever makes runs adds them, and triggers do the rest.
    runs INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    UNIQUE (queue, workflow, version)
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
    due INTEGER,                          -- of one that waits behind others to begin: not before then, and the time
    timeout INTEGER,                      -- that it has from when it may; NULL as soon as it is queued or scheduled
    cancelling TEXT,                      -- why it is to be cancelled; NULL when it is not
    overdue INTEGER NOT NULL DEFAULT 0,   -- whether that is for its deadline; means nothing without `cancelling`
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,                  -- NULL exactly while the state is not final
    parent TEXT,
    place INTEGER,                        -- in the order of its lane; NULL while its group has not admitted it yet
    owner INTEGER NOT NULL DEFAULT 0,     -- who may claim it: 0 anybody, -1 whoever may own one more session, a worker
    grp INTEGER,
    slot INTEGER,                         -- in its group: 0 takes no part, 1 has a slot, 2 is in the line for one
    keep INTEGER NOT NULL DEFAULT 1,      -- whether it keeps its slot while it waits or backs off
    session INTEGER,
    seat INTEGER,                         -- in its session: 0 is held otherwise, 1 is ready, 2 is in the line, 3 runs
    finish INTEGER,                       -- the order of finishing
    kept TEXT,                            -- what lived when it was to be pruned: 'run:' and its parent's id, or
                                          -- 'batch:' and its batch's
    batch TEXT,
    schedule TEXT,                        -- that made it
    unique_key TEXT,
    debounced INTEGER                     -- 1 when it gives its key up as soon as it begins
);

-- The ready set: claimable runs, nothing else, in the order in which they are claimed.
CREATE INDEX run_ready ON run (lane, owner, priority, place) WHERE state = 'queued' AND held IS NULL;
CREATE INDEX run_timer ON run (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX run_deadline ON run (deadline)
    WHERE deadline IS NOT NULL AND finished_at IS NULL AND cancelling IS NULL;
CREATE INDEX run_owned ON run (worker, token) WHERE state = 'running';
CREATE INDEX run_cancelling ON run (worker) WHERE state = 'running' AND cancelling IS NOT NULL;
CREATE INDEX run_away ON run (lane, state) WHERE state IN ('scheduled', 'waiting');
CREATE INDEX run_child ON run (parent) WHERE parent IS NOT NULL;
CREATE INDEX run_failed ON run (state) WHERE state = 'failed';
CREATE INDEX run_prunable ON run (lane, state, finish, finished_at) WHERE finished_at IS NOT NULL AND kept IS NULL;
CREATE INDEX run_kept ON run (kept, lane, state) WHERE kept IS NOT NULL AND finished_at IS NOT NULL;
CREATE INDEX run_batch ON run (batch) WHERE batch IS NOT NULL;
-- The live runs of a schedule, in order.
CREATE INDEX run_schedule ON run (schedule) WHERE schedule IS NOT NULL AND finished_at IS NULL;
-- The live runs of a key come first: those have no end.
CREATE INDEX run_unique ON run (unique_key, finished_at) WHERE unique_key IS NOT NULL;

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
    items INTEGER NOT NULL DEFAULT 0,     -- that it was opened with; those whose runs were there are not of it
    total INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    callback TEXT,
    empty_since INTEGER                   -- when it was opened with nothing, so that no run takes it along
) WITHOUT ROWID;
CREATE INDEX batch_empty ON batch (empty_since) WHERE empty_since IS NOT NULL;
CREATE INDEX batch_callback ON batch (callback) WHERE callback IS NOT NULL;

CREATE TRIGGER batch_counts AFTER UPDATE OF finished_at ON run
WHEN new.batch IS NOT NULL AND (new.finished_at IS NULL) <> (old.finished_at IS NULL)
BEGIN
    UPDATE batch SET
        succeeded = succeeded + (new.state = 'succeeded') - (old.state = 'succeeded'),
        failed = failed + (new.state = 'failed') - (old.state = 'failed'),
        cancelled = cancelled + (new.state = 'cancelled') - (old.state = 'cancelled')
    WHERE id = new.batch;
    UPDATE run SET
        state = CASE WHEN due > new.finished_at THEN 'scheduled' ELSE 'queued' END,
        wake_at = CASE WHEN due > new.finished_at THEN due END,
        deadline = CASE WHEN timeout IS NULL THEN deadline ELSE max(coalesce(due, 0), new.finished_at) + timeout END,
        due = NULL,
        timeout = NULL
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
-- Of a schedule whose runs queue, the first live one does not wait for the others.
CREATE TRIGGER schedule_goes_on AFTER UPDATE OF finished_at ON run
WHEN new.schedule IS NOT NULL AND new.finished_at IS NOT NULL AND old.finished_at IS NULL
BEGIN
    UPDATE run SET
        state = CASE WHEN due > new.finished_at THEN 'scheduled' ELSE 'queued' END,
        wake_at = CASE WHEN due > new.finished_at THEN due END,
        deadline = CASE WHEN timeout IS NULL THEN deadline ELSE max(coalesce(due, 0), new.finished_at) + timeout END,
        due = NULL,
        timeout = NULL
    WHERE seq = (
        SELECT r.seq FROM run AS r INDEXED BY run_schedule
        WHERE r.schedule = new.schedule AND r.finished_at IS NULL ORDER BY r.seq LIMIT 1
    )
        AND state = 'waiting'
        AND EXISTS (SELECT 1 FROM wait AS w WHERE w.run = run.seq AND w.what = 'schedule');
END;

CREATE INDEX schedule_last ON schedule (last_run) WHERE last_run IS NOT NULL;
CREATE INDEX schedule_next ON schedule (next_slot) WHERE next_slot IS NOT NULL AND paused = 0;

CREATE TRIGGER run_counted AFTER UPDATE OF state ON run
WHEN (new.state = 'running') <> (old.state = 'running') OR (new.finished_at IS NULL) <> (old.finished_at IS NULL)
BEGIN
    UPDATE lane SET
        running = running + (new.state = 'running') - (old.state = 'running'),
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
    UPDATE turn SET newest = old.seq WHERE newest < old.seq;
    -- A batch goes with the last of its runs and its callback.
    DELETE FROM batch
    WHERE (id = old.batch OR callback = old.id)
        AND NOT EXISTS (SELECT 1 FROM run WHERE batch = batch.id)
        AND NOT EXISTS (SELECT 1 FROM run WHERE id = batch.callback);
    UPDATE lane SET
        runs = runs - 1,
        running = running - (old.state = 'running'),
        succeeded = succeeded - (old.state = 'succeeded'),
        failed = failed - (old.state = 'failed'),
        cancelled = cancelled - (old.state = 'cancelled')
    WHERE id = old.lane;
END;

-- GROUPS. A run takes part in its group while it is queued or running, and, as declared, while it waits or backs off.
-- Slots are counted from the rows of those that have one, so that no slot can be lost; triggers hand them on, so that
-- it does not matter what statement ends, parks, cancels or removes a run.

-- One row for each group that any run belongs to.
CREATE TABLE grp (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    queue TEXT NOT NULL,
    asked INTEGER NOT NULL,               -- the limit that the start brought which made it
    most INTEGER NOT NULL,                -- the limit that holds
    paused INTEGER NOT NULL,
    UNIQUE (key, queue)
);
CREATE INDEX run_group ON run (grp) WHERE grp IS NOT NULL;
CREATE INDEX run_holder ON run (grp, priority) WHERE slot = 1;
CREATE INDEX run_line ON run (grp, priority) WHERE slot = 2;
CREATE INDEX run_put_off ON run (grp, priority, place) WHERE held = 'rate';
-- Those that have a slot, and have to wait since their group has more of these than its limit.
CREATE INDEX run_over ON run (grp) WHERE slot = 1 AND held = 'group';

-- The place that was given last to a run from a line. Places of runs that no group holds up are their numbers times
-- 2^20; one that comes from a line goes behind all that were enqueued before, and behind all that came from a line
-- before: so groups take turns. `newest` is the highest number of a run that was removed: numbers, and so places, are
-- never used again.
CREATE TABLE turn (place INTEGER NOT NULL, newest INTEGER NOT NULL);
INSERT INTO turn (place, newest) VALUES (0, 0);

-- A run comes into the queue.
CREATE TRIGGER run_joins_group AFTER UPDATE OF state ON run
WHEN new.slot IS NOT NULL AND new.state = 'queued'
BEGIN
    -- It takes a free slot. If there is one, nobody is in the line.
    UPDATE run SET slot = 1, place = coalesce(place, seq << 20)
    WHERE new.slot = 0 AND seq = new.seq AND EXISTS (
        SELECT 1 FROM grp AS g
        WHERE g.id = new.grp
            AND NOT g.paused
            AND g.most > (SELECT count(*) FROM run AS h INDEXED BY run_holder WHERE h.grp = g.id AND h.slot = 1)
    );
    UPDATE run SET slot = 2, held = 'group'
    WHERE new.slot = 0 AND seq = new.seq AND slot = 0;
    -- It comes before one that has a slot and has not begun (or keeps no slot), be it put off for a rate: that one goes
    -- back into the line. Its slot goes on to the first in the line, which is the newcomer.
    UPDATE run SET state = 'queued', slot = 2, held = 'group', wake_at = NULL
    WHERE new.slot = 0 AND seq = (
        SELECT h.seq
        FROM grp AS g CROSS JOIN run AS h INDEXED BY run_holder ON h.grp = g.id AND h.slot = 1
        WHERE g.id = new.grp
            AND NOT g.paused
            AND (h.priority, h.seq) > (new.priority, new.seq)
            AND (h.state = 'queued' OR h.held = 'rate')
            AND (h.started_at IS NULL OR NOT h.keep)
            AND (SELECT slot FROM run WHERE seq = new.seq) = 2
        ORDER BY h.priority DESC, h.seq DESC LIMIT 1
    );
    -- It has kept its slot, but its group is paused.
    UPDATE run SET held = 'paused'
    WHERE new.slot = 1 AND seq = new.seq AND (SELECT paused FROM grp WHERE id = new.grp);
    -- It has kept its slot, but its group has more slots out than its limit: see grp_changed.
    UPDATE grp SET most = most
    WHERE new.slot = 1
        AND id = new.grp
        AND most < (SELECT count(*) FROM run AS h INDEXED BY run_holder WHERE h.grp = new.grp AND h.slot = 1);
END;

-- A run takes no part any more: it has ended, or it waits, for a time at which it is to begin, or without its slot, as
-- declared.
CREATE TRIGGER run_leaves_group AFTER UPDATE OF state ON run
WHEN new.slot > 0 AND new.state NOT IN ('queued', 'running')
    AND (
        new.finished_at IS NOT NULL
        OR (new.held IS NOT 'rate' AND (NOT new.keep OR new.slot = 2 OR new.started_at IS NULL))
    )
BEGIN
    UPDATE run SET slot = 0, held = CASE WHEN slot = 1 THEN held END WHERE seq = new.seq;
END;

-- A run is not there any more that counted against the limit of its group: it makes room for one that was kept back.
CREATE TRIGGER run_makes_room AFTER UPDATE OF state ON run
WHEN old.slot = 1 AND old.state IN ('queued', 'running') AND new.state NOT IN ('queued', 'running')
    AND EXISTS (SELECT 1 FROM run AS h INDEXED BY run_over WHERE h.grp = new.grp AND h.slot = 1 AND h.held = 'group')
BEGIN
    UPDATE grp SET most = most WHERE id = new.grp;
END;

-- A slot that becomes free goes to the first in the line.
CREATE TRIGGER run_slot_freed AFTER UPDATE OF slot ON run
WHEN old.slot = 1 AND new.slot <> 1 AND EXISTS (SELECT 1 FROM run AS l WHERE l.grp = new.grp AND l.slot = 2)
BEGIN
    UPDATE turn SET place = max(place, (SELECT max(seq) FROM run) << 20) + 1;
    UPDATE run SET slot = 1, held = NULL, place = coalesce(place, (SELECT place FROM turn))
    WHERE seq = (
        SELECT l.seq FROM run AS l INDEXED BY run_line
        WHERE l.grp = new.grp AND l.slot = 2 ORDER BY l.priority, l.seq LIMIT 1
    ) AND EXISTS (
        SELECT 1 FROM grp AS g
        WHERE g.id = new.grp
            AND NOT g.paused
            AND g.most > (SELECT count(*) FROM run AS h INDEXED BY run_holder WHERE h.grp = g.id AND h.slot = 1)
    );
END;

-- A limit is raised or lowered, a group is paused or resumed, or it has more slots out than its limit and a run of it
-- comes or goes. What has not begun goes back into the line: what is too much, the last ones first, or all of it. What
-- has begun keeps its slot; of those that are queued no more are let through, in order, than the limit leaves beside
-- those that are running.
CREATE TRIGGER grp_changed AFTER UPDATE OF most, paused ON grp
BEGIN
    UPDATE run SET state = 'queued', slot = 2, held = 'group', wake_at = NULL
    WHERE seq IN (
        SELECT h.seq FROM run AS h INDEXED BY run_holder
        WHERE h.grp = new.id
            AND h.slot = 1
            AND (h.state = 'queued' OR h.held = 'rate')
            AND (h.started_at IS NULL OR NOT h.keep)
        ORDER BY h.priority DESC, h.seq DESC
        LIMIT CASE
            WHEN new.paused THEN -1
            ELSE max(
                0,
                (SELECT count(*) FROM run AS h INDEXED BY run_holder WHERE h.grp = new.id AND h.slot = 1) - new.most
            )
        END
    );
    UPDATE run SET held = 'paused'
    WHERE new.paused AND held IS NOT 'paused' AND grp = new.id AND slot = 1 AND state = 'queued';
    UPDATE run SET held = 'group'
    WHERE NOT new.paused AND held IS NOT 'group' AND seq IN (
        SELECT h.seq FROM run AS h INDEXED BY run_holder
        WHERE h.grp = new.id AND h.slot = 1 AND h.state = 'queued'
        ORDER BY h.priority, h.seq
        LIMIT -1 OFFSET max(
            0,
            new.most - (
                SELECT count(*) FROM run AS h INDEXED BY run_holder
                WHERE h.grp = new.id AND h.slot = 1 AND h.state = 'running'
            )
        )
    );
    UPDATE run SET held = NULL
    WHERE NOT new.paused AND held IN ('group', 'paused') AND seq IN (
        SELECT h.seq FROM run AS h INDEXED BY run_holder
        WHERE h.grp = new.id AND h.slot = 1 AND h.state = 'queued'
        ORDER BY h.priority, h.seq
        LIMIT max(
            0,
            new.most - (
                SELECT count(*) FROM run AS h INDEXED BY run_holder
                WHERE h.grp = new.id AND h.slot = 1 AND h.state = 'running'
            )
        )
    );
    UPDATE turn SET place = max(place, (SELECT max(seq) FROM run) << 20) + 1
    WHERE NOT new.paused AND EXISTS (SELECT 1 FROM run AS l WHERE l.grp = new.id AND l.slot = 2);
    UPDATE run SET slot = 1, held = NULL, place = coalesce(place, (SELECT place FROM turn))
    WHERE NOT new.paused AND seq IN (
        SELECT l.seq FROM run AS l INDEXED BY run_line
        WHERE l.grp = new.id AND l.slot = 2
        ORDER BY l.priority, l.seq
        LIMIT max(
            0,
            new.most - (SELECT count(*) FROM run AS h INDEXED BY run_holder WHERE h.grp = new.id AND h.slot = 1)
        )
    );
END;

-- A run is removed: its slot goes on, and a group without runs goes with the last one.
CREATE TRIGGER run_out_of_group AFTER DELETE ON run
WHEN old.grp IS NOT NULL
BEGIN
    UPDATE turn SET place = max(place, (SELECT max(seq) FROM run) << 20) + 1
    WHERE old.slot = 1 AND EXISTS (SELECT 1 FROM run AS l WHERE l.grp = old.grp AND l.slot = 2);
    UPDATE run SET slot = 1, held = NULL, place = coalesce(place, (SELECT place FROM turn))
    WHERE old.slot = 1 AND seq = (
        SELECT l.seq FROM run AS l INDEXED BY run_line
        WHERE l.grp = old.grp AND l.slot = 2 ORDER BY l.priority, l.seq LIMIT 1
    ) AND EXISTS (
        SELECT 1 FROM grp AS g
        WHERE g.id = old.grp
            AND NOT g.paused
            AND g.most > (SELECT count(*) FROM run AS h INDEXED BY run_holder WHERE h.grp = g.id AND h.slot = 1)
    );
    UPDATE grp SET most = most
    WHERE id = old.grp
        AND EXISTS (
            SELECT 1 FROM run AS h INDEXED BY run_over WHERE h.grp = old.grp AND h.slot = 1 AND h.held = 'group'
        );
    DELETE FROM grp WHERE id = old.grp AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.grp = old.grp);
END;

-- SESSIONS. At most 64 runs of a session are ready; the others are in its line. So ownership changes at a cost that
-- does not depend on how many runs a session has.

-- One row for each session that has an owner, or that any run belongs to.
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    queue TEXT NOT NULL,
    owner INTEGER,                        -- the worker that has it
    idle_until INTEGER,                   -- NULL while a run of it is queued or running; 0 until the time is set
    UNIQUE (key, queue)
);
CREATE INDEX session_owned ON session (owner, idle_until) WHERE owner IS NOT NULL;
CREATE INDEX session_idle ON session (idle_until) WHERE idle_until IS NOT NULL;
CREATE INDEX run_session ON run (session) WHERE session IS NOT NULL;
CREATE INDEX run_seat ON run (session, seat, priority, place) WHERE seat IS NOT NULL;

-- Whatever happens to a run of a session, its seat follows. A newcomer that has no room sends the last one that is
-- ready into the line (maybe itself); a seat that becomes free goes to the first in the line.
CREATE TRIGGER run_in_session AFTER UPDATE OF state, slot, held ON run
WHEN new.session IS NOT NULL
BEGIN
    UPDATE session SET owner = new.worker
    WHERE new.state = 'running' AND old.state <> 'running' AND id = new.session AND owner IS NULL;
    UPDATE run SET
        owner = coalesce((SELECT s.owner FROM session AS s WHERE s.id = new.session), -1),
        seat = CASE
            WHEN state = 'running' THEN 3
            WHEN state <> 'queued' THEN NULL
            WHEN slot IN (0, 2) THEN 0
            WHEN held IS NULL THEN 1
            WHEN held = 'session' THEN 2
            ELSE 0
        END
    WHERE seq = new.seq;
    UPDATE run SET seat = 2, held = 'session'
    WHERE seq = (
        SELECT r.seq FROM run AS r INDEXED BY run_seat
        WHERE r.session = new.session AND r.seat = 1
        ORDER BY r.priority DESC, r.place DESC, r.seq DESC LIMIT 1
    ) AND EXISTS (
        SELECT 1 FROM run AS r INDEXED BY run_seat
        WHERE r.session = new.session AND r.seat = 1 LIMIT 1 OFFSET 64
    );
    UPDATE run SET
        seat = 1,
        held = NULL,
        owner = coalesce((SELECT s.owner FROM session AS s WHERE s.id = new.session), -1)
    WHERE seq = (
        SELECT r.seq FROM run AS r INDEXED BY run_seat
        WHERE r.session = new.session AND r.seat = 2
        ORDER BY r.priority, r.place, r.seq LIMIT 1
    ) AND NOT EXISTS (
        SELECT 1 FROM run AS r INDEXED BY run_seat
        WHERE r.session = new.session AND r.seat = 1 LIMIT 1 OFFSET 63
    );
    UPDATE session SET
        idle_until = CASE
            WHEN EXISTS (
                SELECT 1 FROM run AS r INDEXED BY run_seat WHERE r.session = new.session AND r.seat IS NOT NULL
            ) THEN NULL
            ELSE coalesce(idle_until, 0)
        END
    WHERE id = new.session AND owner IS NOT NULL;
END;

-- A session gets an owner, or loses it.
CREATE TRIGGER session_moved AFTER UPDATE OF owner ON session
BEGIN
    UPDATE run SET owner = coalesce(new.owner, -1) WHERE session = new.id AND seat = 1;
    UPDATE session SET idle_until = NULL WHERE id = new.id AND new.owner IS NULL;
    DELETE FROM session
    WHERE id = new.id AND new.owner IS NULL AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.session = new.id);
END;

-- A run is removed: its seat goes on, and a session without runs and owner goes with the last one.
CREATE TRIGGER run_out_of_session AFTER DELETE ON run
WHEN old.session IS NOT NULL
BEGIN
    UPDATE run SET
        seat = 1,
        held = NULL,
        owner = coalesce((SELECT s.owner FROM session AS s WHERE s.id = old.session), -1)
    WHERE old.seat = 1 AND seq = (
        SELECT r.seq FROM run AS r INDEXED BY run_seat
        WHERE r.session = old.session AND r.seat = 2
        ORDER BY r.priority, r.place, r.seq LIMIT 1
    );
    UPDATE session SET idle_until = 0
    WHERE id = old.session
        AND owner IS NOT NULL
        AND idle_until IS NULL
        AND NOT EXISTS (
            SELECT 1 FROM run AS r INDEXED BY run_seat WHERE r.session = old.session AND r.seat IS NOT NULL
        );
    DELETE FROM session
    WHERE id = old.session AND owner IS NULL AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.session = old.session);
END;

-- LIMITS. What was ever set for a scope; the group's limit and pause are copied to its row in `grp`.
CREATE TABLE scope (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    running INTEGER,
    rate_count INTEGER,
    rate_period INTEGER,
    rate_burst INTEGER,
    debt INTEGER NOT NULL DEFAULT 0,      -- of the rate, at a time: see Meter
    debt_at INTEGER NOT NULL DEFAULT 0,
    budget INTEGER NOT NULL DEFAULT 0,    -- whether claims have to look at it
    chosen INTEGER NOT NULL DEFAULT 0,    -- whether limits were ever set, be it to none
    paused INTEGER NOT NULL DEFAULT 0,
    revision INTEGER NOT NULL,
    who TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE INDEX scope_budget ON scope (kind, name) WHERE budget = 1;

CREATE TABLE revision (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    who TEXT NOT NULL,
    at INTEGER NOT NULL,
    old TEXT NOT NULL,
    new TEXT NOT NULL,
    was_paused INTEGER NOT NULL,
    paused INTEGER NOT NULL
);
CREATE INDEX revision_scope ON revision (kind, name, number);

-- Ids of workers are never used again: tokens are made of them. Names may be there twice: a registration whose reply
-- was lost is repeated.
CREATE TABLE worker (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    queues TEXT NOT NULL,
    workflows TEXT NOT NULL,
    versions TEXT NOT NULL,               -- pairs of workflow and version
    sessions INTEGER NOT NULL,
    session_idle INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
);

CREATE INDEX worker_name ON worker (name);

-- The lanes that exist, are not paused, and that a worker serves, so that a claim walks no others; for each, whose runs
-- it may claim (see run.owner).
CREATE TABLE worker_lane (
    worker INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    PRIMARY KEY (worker, owner, lane)
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
