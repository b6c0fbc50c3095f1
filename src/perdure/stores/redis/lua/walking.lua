-- Lists of runs by filters: walks the smallest index for what is asked, in the order of the runs' numbers, and looks at a
-- bounded number of runs. Whoever asks goes on from where it stopped.

local WALKED = 250

local query -- which runs are asked for
local states, any_state, only_state -- in which states

local function look_for(asked)
    query, states, any_state = asked, {}, #asked.states == 0
    only_state = #asked.states == 1 and asked.states[1]
    for _, state in ipairs(any_state and STATES or asked.states) do
        states[state] = true
    end
end

local function matches(run)
    local s, fact = run.s, run.fact
    if not states[s.state]
        or (query.workflow and fact.workflow ~= query.workflow)
        or (query.queue and fact.queue ~= query.queue)
        or (query.parent and fact.parent ~= query.parent)
        or (query.batch and fact.batch ~= query.batch)
        or (query.group and fact.group ~= query.group)
        or (query.cause and (s.state ~= 'failed' or (s.cause or '') ~= query.cause))
    then
        return false
    end
    if next(query.labels) then
        local packed = call('HGET', P .. 'run:' .. run.id, 'l')
        local labels = packed and unpacked(packed) or {}
        for name, value in pairs(query.labels) do
            if labels[name] ~= value then
                return false
            end
        end
    end
    return true
end

-- How many runs there are of the lanes and in the states that are asked for.
local function count_all()
    local total = 0
    local counts = call('HGETALL', K.counts)
    for i = 1, #counts, 2 do
        local colon = string.find(counts[i], ':', 1, true)
        if states[string.sub(counts[i], 1, colon - 1)] then
            local lane = (query.workflow or query.queue) and lane_of(string.sub(counts[i], colon + 1)) or {}
            if (not query.workflow or lane.workflow == query.workflow) and (not query.queue or lane.queue == query.queue) then
                total = total + tonumber(counts[i + 1])
            end
        end
    end
    return total
end

-- The sorted sets that have all that is asked for: of those there are, the smallest.
local function indexes()
    local live, done = any_state, any_state
    for state in pairs(states) do
        live, done = live or not FINAL[state], done or FINAL[state] or false
    end
    local best
    if query.cause or only_state == 'failed' then
        best = { K.failed }
    elseif live and done then
        best = { K.live, K.done }
    else
        best = { P .. (live and 'live' or 'done') }
    end
    local size = 0
    for _, key in ipairs(best) do
        size = size + call('ZCARD', key)
    end
    local function consider(key)
        local theirs = call('ZCARD', key)
        if theirs <= size then
            best, size = { key }, theirs
        end
    end
    if query.parent then
        consider(P .. 'kids:' .. query.parent)
    end
    if query.batch then
        consider(P .. 'items:' .. query.batch)
    end
    if query.group then
        consider(P .. 'members:' .. query.group)
    end
    for name, value in pairs(query.labels) do
        consider(P .. 'label:' .. join(name, value))
    end
    return best
end

-- The workers, where more runs are running than one script looks at: these are then looked for from outside, and given.
local function too_many_running()
    local running, workers = 0, call('HKEYS', K.workers)
    for _, worker in ipairs(workers) do
        running = running + call('SCARD', P .. 'owned:' .. worker)
    end
    return running > WALKED and workers
end

local function in_order(one, other)
    if query.oldest_first then
        return one.seq < other.seq
    end
    return one.seq > other.seq
end

-- The next runs behind `args.after`, and whether there are more.
local function next_runs()
    local found, more, sets = {}, false, 0
    if args.given then
        for i, id in ipairs(args.given) do
            found[i] = { id = id, seq = i } -- Where to go on is their number then.
        end
    elseif only_state == 'running' then
        -- They are few, whatever waits beside them.
        for _, worker in ipairs(call('HKEYS', K.workers)) do
            for _, id in ipairs(call('SMEMBERS', P .. 'owned:' .. worker)) do
                local seq = find(id).s.seq
                if not args.after or in_order({ seq = args.after }, { seq = seq }) then
                    found[#found + 1] = { id = id, seq = seq }
                end
            end
        end
        sets = 2
    else
        for _, key in ipairs(indexes()) do
            local got
            if query.oldest_first then
                got = call('ZRANGEBYSCORE', key, args.after and '(' .. args.after or '-inf', '+inf',
                    'WITHSCORES', 'LIMIT', 0, WALKED)
            else
                got = call('ZREVRANGEBYSCORE', key, args.after and '(' .. args.after or '+inf', '-inf',
                    'WITHSCORES', 'LIMIT', 0, WALKED)
            end
            for i = 1, #got, 2 do
                found[#found + 1] = { id = got[i], seq = tonumber(got[i + 1]) }
            end
            more, sets = more or #got == 2 * WALKED, sets + (#got > 0 and 1 or 0)
        end
    end
    if sets > 1 then
        table.sort(found, in_order)
    end
    more = more or #found > WALKED
    return found, more
end

-- Does something for each run that matches, `most` at most, and until that returns true. Returns where to go on, if that
-- may bring any more.
local function walk(most, each)
    local found, more = next_runs()
    local left = most
    for i = 1, math.min(#found, WALKED) do
        local run = find(found[i].id)
        if run and matches(run) then
            left = left - 1
            if each(run) or left == 0 then
                return found[i].seq
            end
        end
    end
    return more and found[WALKED].seq or nil
end
