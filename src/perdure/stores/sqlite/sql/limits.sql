-- Limits, rates and pauses of scopes. All but the lookups need the write lock.

-- name: scope
-- What is stored for a scope. Uses the primary key.
SELECT running, rate_count, rate_period, rate_burst, debt, debt_at, chosen, paused, revision, who, at
FROM scope WHERE kind = :kind AND name = :name;

-- name: put
-- Keeps what holds for a scope from now on. Uses the primary key.
INSERT OR REPLACE INTO scope (
    kind, name, running, rate_count, rate_period, rate_burst, debt, debt_at, budget, chosen, paused, revision, who, at
)
VALUES (
    :kind, :name, :running, :rate_count, :rate_period, :rate_burst, :debt, :debt_at,
    :rate_count IS NOT NULL OR (:running IS NOT NULL AND :kind <> 'group'),
    :chosen, :paused, :revision, :who, :now
);

-- name: revise
-- Notes a change.
INSERT INTO revision (kind, name, who, at, old, new, was_paused, paused)
VALUES (:kind, :name, :who, :now, :old, :new, :was_paused, :paused);

-- name: groups
-- Tells the groups of a name what holds for them; fires grp_changed. Uses the unique index of grp.
UPDATE grp SET most = coalesce(:running, asked), paused = :paused WHERE key = :name;

-- name: let_in
-- Queues the runs that the rate of their groups has put off: whoever comes to them looks at the rate that holds now.
-- One that a run before it has sent into its line on the way is queued already, and held. Uses the unique index of grp,
-- and run_put_off.
UPDATE run SET state = 'queued', wake_at = NULL, held = CASE WHEN state = 'queued' THEN held END
WHERE held = 'rate' AND grp IN (SELECT id FROM grp WHERE key = :name);

-- name: pause_lanes
-- Notes which lanes are paused, by their queue, their workflow or the namespace. Walks the lanes, which are few.
UPDATE lane SET paused = NOT paused
WHERE paused <> EXISTS (
    SELECT 1 FROM scope AS s
    WHERE s.paused
        AND (
            (s.kind = 'namespace' AND s.name = '')
            OR (s.kind = 'queue' AND s.name = lane.queue)
            OR (s.kind = 'workflow' AND s.name = lane.workflow)
        )
);

-- name: leave_lanes
-- Takes paused lanes from the workers that serve them. Walks worker_lane.
DELETE FROM worker_lane WHERE lane IN (SELECT id FROM lane WHERE paused);

-- name: limits
-- What is stored for scopes (all, or one), with the runs that count against it. Walks the scopes, and the
-- lanes or run_holder for each.
SELECT json_group_array(
    json_array(
        s.kind, s.name, s.running, s.rate_count, s.rate_period, s.rate_burst, s.paused, s.revision, s.who, s.at,
        CASE
            WHEN s.kind = 'group' THEN (
                SELECT count(*)
                FROM grp AS g CROSS JOIN run AS r INDEXED BY run_holder ON r.grp = g.id AND r.slot = 1
                WHERE g.key = s.name
            )
            ELSE (
                SELECT coalesce(sum(l.running), 0) FROM lane AS l
                WHERE (s.kind <> 'queue' OR l.queue = s.name) AND (s.kind <> 'workflow' OR l.workflow = s.name)
            )
        END,
        CASE WHEN s.kind = 'group' THEN (SELECT count(*) FROM grp AS g WHERE g.key = s.name) ELSE 1 END
    )
)
FROM scope AS s
WHERE (:kind IS NULL OR (s.kind = :kind AND s.name = :name));

-- name: revisions
-- Changes, latest first. Walks the primary key, or revision_scope.
SELECT json_group_array(json_array(number, kind, name, who, at, json(old), json(new), json(was_paused), json(paused)))
FROM (
    SELECT number, kind, name, who, at, old, new,
        CASE WHEN was_paused THEN 'true' ELSE 'false' END AS was_paused,
        CASE WHEN paused THEN 'true' ELSE 'false' END AS paused
    FROM revision
    WHERE (:kind IS NULL OR (kind = :kind AND name = :name))
    ORDER BY number DESC LIMIT :limit
);
