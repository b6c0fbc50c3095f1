-- Making runs: one after the other, so that each of a batch sees what those before it have made.

local batches = {}
resets[#resets + 1] = function()
    if next(batches) then
        batches = {}
    end
end

local function paused_scope(kind, name)
    local scope = call('HGET', K.scope, kind .. ':' .. name)
    return scope and unpacked(scope).paused or false
end

local all_workers, serves, serve, know_lane

do
local known_lanes = {}
local rosters -- the workers, by number
resets[#resets + 1] = function()
    rosters = nil
    if next(known_lanes) then
        known_lanes = {}
    end
end

local function set_of(list)
    local set = {}
    for _, each in ipairs(list or {}) do
        set[each] = true
    end
    return set
end

-- All incarnations, by number, with what they serve as sets.
function all_workers()
    if not rosters then
        rosters = {}
        local workers = call('HGETALL', K.workers)
        for i = 1, #workers, 2 do
            local worker = unpacked(workers[i + 1])
            worker.queues, worker.workflows = set_of(worker.queues), set_of(worker.workflows)
            rosters[workers[i]] = worker
        end
    end
    return rosters
end

-- Whether one of these claims from a lane, if that is not paused.
function serves(worker, lane)
    local version = lane.version or ''
    return worker.queues[lane.queue] and worker.workflows[lane.workflow]
        and (version == '' or set_of(worker.versions[lane.workflow])[version]) or false
end

-- Ties an incarnation to a lane: its ready set, and those of sessions, if it takes any.
function serve(number, worker, name)
    call('SADD', P .. 'served:' .. number, name)
    if worker.sessions > 0 then
        call('SADD', P .. 'served:' .. number, name .. '@', name .. '@' .. number)
    end
end

-- Makes the lane of a run if it is new, and ties the workers to it that serve it.
function know_lane(fact)
    if known_lanes[fact.lane] then
        return
    end
    known_lanes[fact.lane] = true
    if call('HEXISTS', K.lanes, fact.lane) == 1 then
        return
    end
    local lane = { queue = fact.queue, workflow = fact.workflow, version = fact.version }
    lane.paused = paused_scope('namespace', '') or paused_scope('queue', fact.queue)
        or paused_scope('workflow', fact.workflow) or nil
    call('HSET', K.lanes, fact.lane, pack(lane))
    if not lane.paused then
        for number, worker in pairs(all_workers()) do
            if serves(worker, lane) then
                serve(number, worker, fact.lane)
            end
        end
    end
end
end

-- When a start is due, if that is later, and its deadline.
local function begins(start)
    local due = start.at or now + (start.delay or 0)
    local later = due > now
    local deadline = start.timeout and (later and due or now) + start.timeout or nil
    return later and due or nil, deadline
end

local function set_deadline(run, deadline)
    local s = change(run)
    if s.due and s.due ~= deadline then
        zrem(K.due, run.id)
    end
    if deadline and s.due ~= deadline then
        zadd(K.due, deadline, run.id)
    end
    s.due = deadline
end

local function label_key(key, value)
    return P .. 'label:' .. join(key, value)
end

local function batch_of(id)
    local batch = batches[id]
    if batch == nil then
        local packed = call('GET', P .. 'batch:' .. id)
        batch = packed and unpacked(packed) or false
        batches[id] = batch
    end
    return batch or nil
end

local function put_batch(id, batch)
    batches[id], batch.changed = batch, true
end

flushers[#flushers + 1] = function()
    for id, batch in pairs(batches) do
        if batch and batch.changed then
            batch.changed = nil
            call('SET', P .. 'batch:' .. id, pack(batch))
        end
    end
end

-- The key of a run's place among those that may not live beside each other; nil when it has none.
local function unique_key(fact)
    return fact.unique and join(fact.workflow, fact.unique)
end

-- Makes a run. With `wait` it is parked for that, and waits for nothing else: its time counts from when it may begin.
local function make(start, wait)
    local fact = facts(start.facts)
    know_lane(fact)
    local seq = in_time.next('seq')
    local s_new = { seq = seq, made = now, size = #start.input, home = start.place, rare = start.place ~= nil }
    local run = { id = start.id, fact = fact, is_new = true, s = s_new, fact_text = start.facts, input = start.input }
    local s = change(run)
    runs[run.id] = run
    zadd(K.live, seq, run.id)
    if fact.parent then
        zadd(P .. 'kids:' .. fact.parent, seq, run.id)
    end
    if fact.group then
        local group = group_of(run)
        if group.runs == 0 then
            call('SADD', P .. 'groups:' .. fact.group, group.name)
        end
        group.runs, group.changed, s.slot = group.runs + 1, true, 0
        zadd(P .. 'members:' .. fact.group, seq, run.id)
    end
    local session = session_of(run)
    if session then
        session.runs, session.changed = session.runs + 1, true
    end
    if fact.batch then
        local batch = batch_of(fact.batch) or { items = 0, total = 0, succeeded = 0, failed = 0, cancelled = 0 }
        batch.total = batch.total + 1
        put_batch(fact.batch, batch)
        zadd(P .. 'items:' .. fact.batch, seq, run.id)
    end
    if start.labels then
        run.labels = pack(start.labels)
        keep(run, 'l', run.labels)
        for key, value in pairs(start.labels) do
            zadd(label_key(key, value), seq, run.id)
        end
    end
    local key = unique_key(fact)
    if key then
        call('SET', P .. 'unique:' .. key, run.id)
        call('ZADD', P .. 'taken:' .. key, seq, run.id)
    end
    local due, deadline = begins(start)
    if wait then
        mark(run).later, s.timeout = due, start.timeout
        put_waits(run, cjson.encode({ wait }), { wait.what, wait.target })
        move(run, 'waiting')
    else
        set_deadline(run, deadline)
        move(run, due and 'scheduled' or 'queued', due)
    end
    made_ready = true -- A delayed one counts as well: workers may have to wake earlier than they meant to.
    return run
end

-- The input of a run, and the one that it was started with, if that was another one.
local function inputs_of(run)
    local kept = run.fields
    if kept and kept.i then
        return kept.i, kept.first
    elseif run.is_new then
        return run.input
    end
    local found = call('HMGET', K['run:'] .. run.id, 'i', 'first')
    return found[1], found[2]
end

-- A start with a unique key that a run has which has not begun: that one takes its input and its due time.
local function replace(run, start)
    local s = change(run)
    local due, deadline = begins(start)
    local input, first = inputs_of(run)
    keep(run, 'first', first or input)
    keep(run, 'i', start.input)
    s.size = s.size + #start.input - #input
    if s.opens then
        mark(run).opens = due or 0
    end
    if s.state == 'waiting' and not s.opens then
        mark(run).later, s.timeout = due, start.timeout
        return
    end
    set_deadline(run, deadline)
    if s.state == 'waiting' or (s.held == 'rate' and (due or 0) <= s.wake) then
        return
    end
    if s.held == 'rate' then
        s.held = nil
    end
    if due then
        move(run, 'scheduled', due)
    elseif s.state ~= 'queued' then
        move(run, 'queued')
    end
    made_ready = true
end

-- The input that a run was started with, whatever it has continued with since.
local function first_input(run)
    local input, first = inputs_of(run)
    return first or input
end

local function existed(run, start)
    local same = run.fact.workflow == facts(start.facts).workflow and first_input(run) == start.input
    return { id = run.id, existed = true, same = same }
end

-- PLACES. A run that is not at the home of its id bears its place, as the entry there says it.

local places = {}

-- The answer to a start whose run is not here, with the place that is to be looked at.
function places.elsewhere(start, place)
    return { id = start.id, existed = false, same = false, place = place }
end

-- Why a run that is not here can't be made here, as the answer to its start: it is elsewhere, or its place was given up.
function places.misplaced(start)
    if not spread or find(start.id) then
        return nil
    elseif not start.place then
        local place = call('GET', P .. 'where:' .. start.id)
        return place and places.elsewhere(start, place)
    elseif call('HGET', P .. 'gone', start.id) == start.place then
        return places.elsewhere(start, start.place)
    end
end

-- The first of some starts that can't be made here, with its place.
function places.first_misplaced(starts)
    for _, start in ipairs(starts) do
        local answer = places.misplaced(start)
        if answer then
            return start.id, answer.place
        end
    end
end

-- Gives a place up where no run is: nothing can be made there any more, and the entry is removed in time.
function places.give_up(start)
    if start.place and not find(start.id) then
        call('HSET', P .. 'gone', start.id, start.place)
    end
end

-- Carries out a start; returns what became of it, and the run if one was made.
local function begin(start, wait)
    local there = find(start.id)
    if there then
        return existed(there, start)
    end
    local unique = start.unique
    if unique then
        local fact = facts(start.facts)
        local key = unique_key(fact)
        if unique.on == 'debounce' then
            start.at, start.delay = nil, unique.period
        end
        local holder = call('GET', P .. 'unique:' .. key)
        holder = holder and find(holder)
        if holder then
            if (unique.on == 'replace' or unique.on == 'debounce') and not holder.s.begun then
                replace(holder, start)
            end
            return { id = holder.id, existed = true, same = true }
        end
        if unique.on == 'throttle' then
            local last = call('ZREVRANGE', P .. 'taken:' .. key, 0, 0)[1]
            last = last and find(last)
            if last and last.s.made > now - unique.period then
                return { id = last.id, existed = true, same = true }
            end
        end
    end
    local run = make(start, wait)
    local group = group_of(run)
    local limit = run.fact.group_limit or 1
    if group and limit ~= group.asked and limit ~= group.most then
        return { id = run.id, existed = false, same = true, group_limit = group.most }, run
    end
    return 0, run
end

-- Makes runs that differ in nothing but their ids and inputs, are due at once, and share nothing (no group, session, key,
-- parent or batch), with a few commands for all of them. Returns whether it did: not where an id is one of a run already,
-- or there twice.
local function make_alike(text, ids, inputs)
    local keys, seen = {}, {}
    for i, id in ipairs(ids) do
        if seen[id] then
            return false
        end
        seen[id], keys[i] = true, K['run:'] .. id
    end
    if call('EXISTS', unpack(keys)) > 0 then
        return false
    end
    local fact = facts(text)
    know_lane(fact)
    local last, nowhere = in_time.take('seq', #ids), order(0)
    local live, ready = {}, {}
    local alike_state = states_alike({ state = 'queued', seq = 0, made = now, size = 0 })
    for i, id in ipairs(ids) do
        local seq, n = last + i, 2 * i
        local place = order(seq) .. nowhere
        call('HSET', keys[i], 'f', text, 's', alike_state(seq, #inputs[i], place), 'i', inputs[i])
        live[n - 1], live[n] = seq, id
        ready[n - 1], ready[n] = fact.priority, place .. id
    end
    call('ZADD', K.live, unpack(live))
    call('ZADD', P .. 'ready:' .. fact.lane, unpack(ready))
    call('SADD', K.hot, fact.lane)
    count(fact.lane, 'queued', #ids)
    return true
end
