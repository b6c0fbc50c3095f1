-- The end of runs, and what it sets free; the removal of all that is kept of one.

local wait_for, wake, release_key, batch_is_over, note_batch, finish, end_held, unfinish, remove

do
-- WAITS. A run that is parked for others is put down at each of them (:parked:ID), and stays there while it is awake, since
-- it mostly waits for the same ones again: what it waits for no more takes it out. One that wakes them from there has
-- nothing to do where they don't wait, and where they wait for others by now, they look and are parked again.

local FEW_WAITS = 10 -- So many are taken out at once.
local TAKEN_OUT = 10 -- How many are for each run that a script may take up,
local WOKEN = 2 -- and how many are woken.

-- The runs of some conditions that others do not have.
local function left_of(before, after)
    local stays, out = {}, {}
    for at = 2, #after, 2 do
        stays[after[at]] = true
    end
    for at = 1, #before, 2 do
        if before[at] == 'run' and not stays[before[at + 1]] then
            out[#out + 1] = before[at + 1]
        end
    end
    return out
end

local function take_out(id, targets)
    for _, target in ipairs(targets) do
        call('SREM', P .. 'parked:' .. target, id)
    end
end

-- What a run waits for from now on, if anything (see waits.lua).
function wait_for(run, waits, conditions, much)
    local was_much, before = run.s.much, parts_of(run)
    put_waits(run, waits, conditions, much)
    if not before[1] then
        return
    elseif not was_much and not much then
        local out = left_of(before[1], run.s.on or NOTHING)
        if #out <= FEW_WAITS then
            take_out(run.id, out)
            return
        end
    end
    local parts = {}
    for at, part in ipairs(before) do
        if part ~= part_of(run, at) then -- Most are as they were.
            parts[#parts + 1] = { at, was_much and part or pack(part) }
        end
    end
    if parts[1] then
        begin_chore('leave', string.format('%.0f', next_number('leave')), { id = run.id, many = #before, parts = parts })
    end
end

-- What a run waits for now, of the targets that a part of so many had: each is in the part that its hash says, and how many
-- there are is a power of two.
local function conditions_beside(run, at, many)
    local much = run.s.much
    if not much then
        return run.s.on or NOTHING
    end
    local parts = {}
    for each = (at - 1) % math.min(many, much) + 1, much, many do
        parts[#parts + 1] = part_of(run, each)
    end
    return joined(parts, true)
end

function chore_kinds.leave(_, chore)
    local run, parts = find(chore.id), chore.parts
    while parts[1] and steps >= 0 do
        local at, part = unpack(table.remove(parts))
        local conditions = unpacked(part)
        take_out(chore.id, left_of(conditions, run and conditions_beside(run, at, chore.many) or NOTHING))
        steps = steps - math.ceil(#conditions / 2 / TAKEN_OUT)
    end
    return not parts[1]
end

-- Queues a run that is parked. What it was parked for stays with it until its next settle: the claim tells of it. One that
-- waited behind others to begin may have a delay that runs still, and its time counts from when it may.
function wake(run)
    local s = run.s
    if s.state ~= 'waiting' then
        return false
    end
    local due = s.later and s.later > now and s.later or nil
    if s.timeout then
        set_deadline(run, (due or now) + s.timeout)
    end
    s.later, s.timeout = nil, nil
    move(run, due and 'scheduled' or 'queued', due)
    return true
end

function chore_kinds.wake(id)
    local most = WOKEN * (steps + 1)
    local waiting = call('SPOP', P .. 'parked:' .. id, most)
    steps = steps - math.floor(#waiting / WOKEN)
    for _, each in ipairs(waiting) do
        local partition, waiter = string.match(each, '^%z(%d+):(.*)$')
        if partition then
            call('SADD', P .. 'mail', pack({ tonumber(partition), waiter, id }))
            tell('work') -- A worker carries it there.
        else
            local run = find(each)
            if run then
                wake(run)
            end
        end
    end
    return #waiting < most
end

-- Wakes those that are parked for a run.
local function wake_parked(id)
    begin_chore('wake', id, {})
end

-- Lets a unique key go that a run has.
function release_key(run)
    local key = unique_key(run.fact)
    if key and call('GET', P .. 'unique:' .. key) == run.id then
        call('DEL', P .. 'unique:' .. key)
    end
end

-- Of a schedule whose runs queue, the first live one does not wait for the others.
local function go_on(schedule)
    local key = P .. 'made:' .. schedule
    flush_set(key)
    local first = call('ZRANGE', key, 0, 0)[1]
    first = first and find(first)
    if first and conditions_of(first)[1] == 'schedule' then
        wake(first)
    end
end

function batch_is_over(batch)
    return batch.succeeded + batch.failed + batch.cancelled >= batch.total
end

function note_batch(run, state, by)
    local batch = run.fact.batch and batch_of(run.fact.batch)
    if batch then
        batch[state] = batch[state] + by
        put_batch(run.fact.batch, batch)
        local callback = batch.callback and batch_is_over(batch) and find(batch.callback)
        if callback then
            wake(callback)
        end
    end
end

-- Ends a run, however that came; `number` is its place in the order of finishing, if it was given out before.
function finish(run, state, body, cause, number)
    local s, fact = change(run), run.fact
    if s.waits or s.much then
        wait_for(run)
    end
    s.cut = nil
    move(run, state)
    s.held, s.why, s.over, s.cause = nil, nil, nil, nil
    if cause then
        mark(run).cause = cause
    end
    s.done, s.finish = now, number or in_time.next('finish')
    keep_outcome(run, body or false)
    if s.due then
        zrem(K.due, run.id)
    end
    zrem(K.live, run.id)
    zadd(K.done, s.seq, run.id)
    zadd(P .. 'fin:' .. fact.lane .. ':' .. state, s.finish, run.id)
    if state == 'failed' then
        zadd(K.failed, s.seq, run.id)
    end
    if fact.unique then
        release_key(run)
    end
    if fact.batch then
        note_batch(run, state, 1)
    end
    if s.schedule then
        zrem(P .. 'made:' .. s.schedule, run.id)
        go_on(s.schedule)
    end
    if s.awaited then
        wake_parked(run.id)
        s.awaited = nil
    end
    if fact.parent then
        tell('work') -- The parent may be running, and watch for this.
    end
    run.told = body
    ended_runs[#ended_runs + 1] = run
end

-- Whether no live worker has the version of a lane, and others of its workflow there are.
local function lacks_version(lane, leaving)
    local any = { queue = lane.queue, workflow = lane.workflow }
    local others = false
    for number, worker in pairs(all_workers()) do
        if number ~= leaving and call('HEXISTS', K.takes, number) == 1 then
            if serves(worker, lane) then
                return false
            end
            others = others or serves(worker, any)
        end
    end
    return others
end

-- Of runs that came back while they are being cancelled, ends those that nobody may claim, to have their code clean up (see
-- perdure.blame). A worker that is leaving claims nothing any more.
function end_held(back, leaving)
    local held = {}
    for _, run in ipairs(back) do
        local s, lane = run.s, unpacked(call('HGET', K.lanes, run.fact.lane))
        local pinned = (lane.version or '') ~= ''
        if s.state == 'queued'
            and (s.held == 'group' or s.held == 'paused' or lane.paused or (pinned and lacks_version(lane, leaving)))
        then
            held[#held + 1] = run
        end
    end
    for _, run in ipairs(held) do
        if run.s.over then
            finish(run, 'failed', OVERDUE_ERROR, OVERDUE)
        else
            finish(run, 'cancelled', (string.gsub(cjson.encode(run.s.why), '\\/', '/')))
        end
    end
end

-- Takes back that a run has ended, as far as others know of it.
function unfinish(run)
    local s = change(run)
    zrem(K.done, run.id)
    zrem(P .. 'fin:' .. run.fact.lane .. ':' .. s.state, run.id)
    if s.kept then
        call('SREM', P .. 'kept:' .. s.kept, run.id)
        s.kept = nil
    end
    if s.state == 'failed' then
        zrem(K.failed, run.id)
    end
end

local function drop_signals(id)
    local keys = {}
    for i, kind in ipairs({ 'sig:', 'sigid:', 'sigw:', 'sign:', 'sigc:', 'sigcid:', 'sigby:', 'sigold:' }) do
        keys[i] = P .. kind .. id
    end
    call('UNLINK', unpack(keys))
end

-- LANES go with their last run, and nobody serves them any more: the next run makes its lane anew, which finds again who
-- serves it, and whether it is paused.

local leave_lane
do
    local left = {} -- lanes of which runs were removed, by name

    resets[#resets + 1] = function()
        if next(left) then
            left = {}
        end
    end

    function leave_lane(lane)
        left[lane] = true
    end

    local function has_runs(lane)
        local fields = {}
        for i, state in ipairs(STATES) do
            fields[i] = lane_name(state, lane)
        end
        for _, runs in ipairs(call('HMGET', K.counts, unpack(fields))) do
            if runs then
                return true
            end
        end
        return false
    end

    -- When the counts are kept.
    flushers[#flushers + 1] = function()
        local workers
        for lane in pairs(left) do
            if not has_runs(lane) then
                call('HDEL', K.lanes, lane)
                srem(K.hot, lane)
                srem(K.hot, lane .. '@')
                workers = workers or call('HKEYS', K.workers)
                for _, worker in ipairs(workers) do
                    local own, served = lane .. '@' .. worker, P .. 'served:' .. worker
                    srem(K.hot, own)
                    srem(served, lane)
                    srem(served, lane .. '@')
                    srem(served, own)
                end
            end
        end
        if next(left) then
            left = {}
        end
    end
end

-- Removes a run that has ended, with all that is kept of it, and wakes those that are parked for it.
function remove(run)
    local s, fact, id = run.s, run.fact, run.id
    unfinish(run)
    count(fact.lane, s.state, -1)
    leave_lane(fact.lane)
    local key = unique_key(fact)
    if key then
        zrem(P .. 'taken:' .. key, id)
    end
    if fact.parent then
        zrem(P .. 'kids:' .. fact.parent, id)
    end
    local group = group_of(run)
    if group then
        group.runs, group.changed = group.runs - 1, true
        if group.runs == 0 then
            call('SREM', P .. 'groups:' .. fact.group, group.name)
        end
        zrem(P .. 'members:' .. fact.group, id)
    end
    local session = session_of(run)
    if session then
        session.runs, session.changed = session.runs - 1, true
    end
    local labels = call('HGET', P .. 'run:' .. id, 'l')
    for name, value in pairs(labels and unpacked(labels) or {}) do
        zrem(label_key(name, value), id)
    end
    if s.awaited then
        wake_parked(id)
    end
    if s.fired then
        local packed = call('HGET', K.schedules, s.fired)
        local kept = packed and unpacked(packed)
        if kept and kept.last_run == id then
            kept.last_run = nil
            call('HSET', K.schedules, s.fired, pack(kept))
        end
    end
    for _, name in ipairs({ fact.batch or false, s.calls_back or false }) do
        local batch = name and batch_of(name)
        if batch then
            local items = P .. 'items:' .. name
            if name == fact.batch then
                zrem(items, id)
            end
            local callback = batch.callback and batch.callback ~= id and find(batch.callback)
            if not callback then
                flush_set(items)
                if call('EXISTS', items) == 0 then
                    call('DEL', P .. 'batch:' .. name)
                    batches[name] = false
                end
            end
        end
    end
    if s.signals then
        drop_signals(id)
    end
    if s.positions then
        flush_set(P .. 'cpo:' .. id)
        call('UNLINK', P .. 'cp:' .. id, P .. 'cpo:' .. id, P .. 'cperr:' .. id)
    end
    if s.home then
        call('HSET', P .. 'gone', id, s.home)
    end
    call('UNLINK', P .. 'run:' .. id)
    run.changed, runs[id] = false, false
end
end
