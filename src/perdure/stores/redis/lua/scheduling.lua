-- Schedules: kept by name, and moved on by whoever sees a slot due first.

local function read_schedule(name)
    local packed = call('HGET', K.schedules, name)
    return packed and unpacked(packed)
end

-- Keeps a schedule, and where it stands among those that have slots to come.
local function put_schedule(name, kept)
    call('HSET', K.schedules, name, pack(kept))
    if kept.next_slot and not kept.paused then
        call('ZADD', K.slots, kept.next_slot, name)
    else
        call('ZREM', K.slots, name)
    end
end

local function live_runs(name)
    flush_set(P .. 'made:' .. name)
    return call('ZRANGE', P .. 'made:' .. name, 0, -1)
end

-- Makes the run of a slot; nil when earlier ones, which have not ended, keep it from being made.
local function begin_slot(each, start)
    local wait
    if each.overlap then
        local earlier = {}
        for _, id in ipairs(live_runs(each.name)) do
            if id ~= start.id then
                earlier[#earlier + 1] = id
            end
        end
        if #earlier > 0 and each.overlap == 'skip' then
            return nil
        end
        if each.overlap == 'cancel' then
            for _, id in ipairs(earlier) do
                stop_family(id, each.reason, each.body)
            end
        elseif #earlier > 0 then
            wait = { key = 'schedule:' .. each.name, what = 'schedule', target = each.name }
        end
    end
    local answer = begin(start, wait)
    local id = answer ~= 0 and answer.id or start.id
    local run = find(id)
    if not run.s.schedule then
        mark(run).schedule = each.name
        if not FINAL[run.s.state] then
            zadd(P .. 'made:' .. each.name, run.s.seq, id)
        end
    end
    return id
end

-- Makes the runs of slots that nobody has fired yet. One by one: what one fire does depends on what the one before made.
local function fire(fires)
    for _, each in ipairs(fires) do
        local kept = read_schedule(each.name)
        if kept and not kept.paused and kept.next_slot == each.slot then
            local made
            for _, start in ipairs(each.starts or {}) do
                made = begin_slot(each, start) or made
            end
            kept.next_slot = each.next_slot
            if made then
                kept.last_slot, kept.last_run = each.slot, made
                mark(find(made)).fired = each.name
            end
            put_schedule(each.name, kept)
            made_ready = true
        end
    end
end

local function show_schedule(name, kept)
    return {
        name = name, spec = kept.spec, paused = kept.paused or false, next_slot = kept.next_slot,
        last_slot = kept.last_slot, last_run = kept.last_run, declared = kept.declared or false,
    }
end

-- When the next slot to come is, and the schedules whose slot is due.
local function due_schedules(skips, most)
    local skipped, due, next_slot = {}, {}, nil
    for _, name in ipairs(skips) do
        skipped[name] = true
    end
    local found = call('ZRANGE', K.slots, 0, most + #skips, 'WITHSCORES')
    if #found == 0 then
        return false, due
    end
    for i = 1, #found, 2 do
        if tonumber(found[i + 1]) <= now and not skipped[found[i]] and #due < most then
            due[#due + 1] = show_schedule(found[i], read_schedule(found[i]))
        end
    end
    local later = call('ZRANGEBYSCORE', K.slots, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    next_slot = tonumber(later[2])
    return next_slot or false, due
end
