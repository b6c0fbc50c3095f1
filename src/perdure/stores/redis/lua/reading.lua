-- What clients are shown of runs, and what decides whether those that are queued may begin.

local known -- what was read of records, by kind and name

resets[#resets + 1] = function()
    known = {}
end

local function cached(kind, read)
    return function(name)
        local kept = known[kind]
        if not kept then
            kept = {}
            known[kind] = kept
        end
        if kept[name] == nil then
            kept[name] = read(name) or false
        end
        return kept[name] or nil
    end
end

local function record_in(key)
    return cached(key, function(name)
        local packed = call('HGET', P .. key, name)
        return packed and unpacked(packed)
    end)
end

local worker_of, group_called = record_in('workers'), record_in('group')
local session_called, scope_called = record_in('session'), record_in('scope')

local function live_workers()
    return call('ZRANGEBYSCORE', K.lease, '(' .. now, '+inf')
end

-- Whether a live incarnation claims from a ready set.
local served = cached('served', function(name)
    for _, worker in ipairs(live_workers()) do
        if call('SISMEMBER', P .. 'served:' .. worker, name) == 1 then
            return true
        end
    end
    return false
end)

-- The first of the runs that have a slot of a group: number and id.
local holder_in = cached('holder', function(name)
    local first, priority
    for _, set in ipairs({ 'early:', 'again:', 'held:', 'stopped:', 'resting:', 'begun:' }) do
        local found = call('ZRANGE', P .. set .. name, 0, 0, 'WITHSCORES')
        local theirs = tonumber(found[2])
        if theirs and (not first or theirs < priority or (theirs == priority and before(found[1], first))) then
            first, priority = found[1], theirs
        end
    end
    return first and { struct.unpack('>I8', first), string.sub(first, 9) }
end)

-- A map, unless it is empty: nobody could tell that from a list then.
local function map(packed)
    local found = packed and unpacked(packed)
    return found and next(found) and found or nil
end

-- What a parked run waits for, as it is kept; false for others.
local function shown_waits(run)
    local s = run.s
    if s.state ~= 'waiting' then
        return false
    end
    if s.on and s.on[1] == 'schedule' then
        local waits = cjson.decode(s.waits)
        waits[1].target = call('ZRANGE', P .. 'made:' .. s.on[2], 0, 0)[1]
        return cjson.encode(waits)
    end
    return waits_of(run) or false
end

local function show(run)
    local s, fact = run.s, run.fact
    local input, outcome, status, labels = unpack(call('HMGET', P .. 'run:' .. run.id, 'i', 'o', 'st', 'l'))
    local worker = s.worker and worker_of(s.worker)
    return {
        id = run.id, workflow = fact.workflow, queue = fact.queue, priority = fact.priority, state = s.state,
        attempt = s.attempt or 1, crashes = s.crashes or 0, cut_off = s.cut and not s.done or false, input = input,
        created_at = s.made, started_at = s.begun, finished_at = s.done, wake_at = s.wake, deadline = s.due,
        parent = fact.parent, worker = worker and worker.name or nil, cancelling = s.why,
        lease_until = worker and tonumber(call('ZSCORE', K.lease, s.worker) or nil) or nil,
        body = s.state ~= 'running' and s.state ~= 'waiting' and outcome or nil, position = s.seq,
        version = fact.version, group = fact.group, session = fact.session, unique = fact.unique, batch = fact.batch,
        labels = map(labels), status = status or nil, cause = s.cause,
    }
end

-- What decides about a run that is queued or held; nil for others.
local function deciding(run)
    local s, fact = run.s, run.fact
    if s.state ~= 'queued' and not (s.state == 'scheduled' and s.held) then
        return nil
    end
    local told = {
        run = s.seq, state = s.state, held = s.held, queue = fact.queue, workflow = fact.workflow,
        version = fact.version, served = served(fact.lane) or false, group = fact.group, session = fact.session,
    }
    local name = fact.group and join(fact.queue, fact.group)
    local group = name and group_called(name)
    if group then
        told.most, told.group_paused, told.slots = group.most, group.paused and true or false, group.slots
        told.holder = holder_in(name)
    end
    local session = fact.session and session_called(join(fact.queue, fact.session))
    if session then
        local owner = session.owner and worker_of(session.owner)
        told.owner, told.seats = owner and owner.name or nil, session.seated
    end
    return told
end

local function scope_parts(scope)
    local colon = string.find(scope, ':', 1, true)
    return string.sub(scope, 1, colon - 1), string.sub(scope, colon + 1)
end

-- All limits and rates, but of groups those that are named.
local function budget_rows(named)
    local rows, limited = {}, false
    local function add(scope, packed)
        local row = unpacked(packed)
        row.kind, row.name = scope_parts(scope)
        limited = limited or (row.running and row.kind ~= 'group')
        local debt = row.count and call('HGET', P .. 'debt', scope)
        if debt then
            row.debt, row.at = unpack(unpacked(debt))
        end
        rows[#rows + 1] = row
    end
    local all = call('HGETALL', K.budget)
    for i = 1, #all, 2 do
        add(all[i], all[i + 1])
    end
    for group in pairs(named) do
        local packed = call('HGET', K.rated, group)
        if packed then
            add('group:' .. group, packed)
        end
    end
    local running = {}
    local counts = limited and call('HGETALL', K.counts) or {}
    for i = 1, #counts, 2 do
        local state, name = scope_parts(counts[i])
        if state == 'running' then
            local lane = lane_of(name)
            running[#running + 1] = { lane.queue, lane.workflow, tonumber(counts[i + 1]) }
        end
    end
    return rows, running
end

-- What keeps runs: all that it can be told from.
local function why(list)
    local facts, holders, seen, scopes, groups = {}, {}, {}, { ['namespace:'] = true }, {}
    local function add(run, to)
        local told = deciding(run)
        if told then
            to[#to + 1] = told
            scopes['queue:' .. told.queue], scopes['workflow:' .. told.workflow] = true, true
            if told.group then
                scopes['group:' .. told.group], groups[told.group] = true, true
            end
        end
    end
    for _, run in ipairs(list) do
        add(run, facts)
    end
    if #facts == 0 then
        return nil
    end
    -- One that waits for a slot is kept by what keeps the one that has it.
    for _, told in ipairs(facts) do
        local id = told.held == 'group' and told.holder and told.holder[2]
        if id and not seen[id] then
            seen[id] = true
            local run = find(id)
            if run then
                add(run, holders)
            end
        end
    end
    local pauses = {}
    for name in pairs(scopes) do
        local scope = scope_called(name)
        if scope and scope.paused then
            local kind, rest = scope_parts(name)
            pauses[#pauses + 1] = { kind, rest, scope.paused_by or scope.who, scope.paused_at or scope.at }
        end
    end
    local budgets, running = budget_rows(groups)
    return { facts = facts, holders = holders, pauses = pauses, budgets = budgets, running = running, now = now }
end

local function show_all(list)
    local shown, waits = {}, {}
    for i, run in ipairs(list) do
        shown[i], waits[i] = show(run), shown_waits(run)
    end
    return { runs = shown, waits = waits, why = why(list) }
end
