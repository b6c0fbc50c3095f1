-- library: reads
-- flags: no-writes
-- What is live in each lane, by kind, and what is left of limits and rates. Looks at the lanes, at the ready sets, and in
-- these at the first run of each priority.

local LONGEST = 21 -- The most bytes of what stands behind the name of a lane: an owner.

local manned = {}
for _, number in ipairs(live_workers()) do
    for _, queue in ipairs(worker_of(number).queues) do
        manned[queue] = true
    end
end

local rows, lanes, names = {}, {}, {}
local packed_lanes = call('HGETALL', K.lanes)
for i = 1, #packed_lanes, 2 do
    local lane = unpacked(packed_lanes[i + 1])
    names[#names + 1], lanes[packed_lanes[i]] = packed_lanes[i], lane
    rows[#rows + 1] = { lane.queue, lane.workflow, lane.version or '', manned[lane.queue] or false }
end

local function tell_of(lane, what, runs, oldest)
    rows[#rows + 1] = {
        lane.queue, lane.workflow, lane.version or '', manned[lane.queue] or false, what, runs, oldest,
    }
end

-- When the first of a ready set was made; of each priority, the one that comes first.
local function oldest_in(key)
    local oldest
    local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    while head[1] do
        local made = find(string.sub(head[1], 17)).s.made
        oldest = oldest and math.min(oldest, made) or made
        head = call('ZRANGEBYSCORE', key, '(' .. head[2], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    end
    return oldest
end

for _, name in ipairs(call('SMEMBERS', K.hot)) do
    local key = P .. 'ready:' .. name
    local runs = call('ZCARD', key)
    if runs > 0 then
        local lane, owner = lanes[name], nil
        if not lane then
            local from = string.find(name, '@[%d]*$', math.max(1, #name - LONGEST))
            lane, owner = lanes[string.sub(name, 1, from - 1)], string.sub(name, from + 1)
        end
        if lane.paused then
            tell_of(lane, 'paused', runs)
        elseif owner and owner ~= '' then
            tell_of(lane, 'session', runs)
        else
            tell_of(lane, served(name) and 'ready' or 'unserved', runs, oldest_in(key))
        end
    end
end

local KINDS = {
    running = true, scheduled = true, waiting = true, session = true, group = true, ['group paused'] = true, rate = true,
}
local counts = call('HGETALL', K.counts)
for i = 1, #counts, 2 do
    local kind, name = scope_parts(counts[i])
    local lane, runs = lanes[name], tonumber(counts[i + 1])
    if KINDS[kind] then
        tell_of(lane, kind, runs)
    end
    if kind == 'rate' then
        tell_of(lane, 'scheduled', -runs)
    end
end

local budgets, running = budget_rows({})
return pack({ now = now, rows = rows, lanes = names, budgets = budgets, running = running })
