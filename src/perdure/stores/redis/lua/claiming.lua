-- Claiming: what is ready for a worker, by turns of queues, and of a queue by priority, then place; within limits, rates
-- and the sessions that the worker may own.

local claimer -- {worker, serial, next token, sessions}
local claimed, claimed_bytes = {}, 0
local take, ready_names, claim_by_turns, claim_within_budgets, room_at

do
local MOST_SETS = 100 -- The most ready sets that one script looks into.
local ROUND = 100 -- The most runs that one script puts off for the rates of their groups.

resets[#resets + 1] = function()
    claimed_bytes = 0
    if claimed[1] then
        claimed = {}
    end
end

-- Whether a run fits into the bytes of this exchange; the first one does whatever its size, unless this goes on with
-- an exchange that has claimed some already.
local function fits(run)
    local most = args.bytes or BOUNDS.claim_bytes
    return (#claimed == 0 and not args.first) or claimed_bytes + run.s.size + (run.s.kept_size or 0) <= most
end

function take(run)
    local s = change(run)
    s.worker, s.low = claimer.worker, claimer.serial * 256 + claimer.next
    if not s.begun then
        s.begun = now
        if run.fact.debounced then
            release_key(run)
        end
    end
    move(run, 'running')
    claimed_bytes = claimed_bytes + s.size + (s.kept_size or 0)
    run.number = claimer.next
    claimed[#claimed + 1] = run
    claimer.next = claimer.next + 1
end

local function ready_key(name)
    return P .. 'ready:' .. name
end

local crowded = false -- whether there were more ready sets for one worker than a script looks into

-- The ready sets that may have something for a worker: all of them, or some, as they come, where these are too many to
-- be looked at. Returns also whether there are others.
function ready_names(worker)
    local served = key_of(worker, 'served:')
    flush_set(K.hot)
    if crowded then
        crowded = call('SINTERCARD', 2, served, K.hot, 'LIMIT', MOST_SETS + 1) > MOST_SETS
    end
    if not crowded then
        local names = call('SINTER', served, K.hot)
        crowded = #names > MOST_SETS
        if not crowded then
            return names, false
        end
    end
    local some, names = call('SRANDMEMBER', K.hot, MOST_SETS), {}
    for i, is_served in ipairs(call('SMISMEMBER', served, unpack(some))) do
        if is_served == 1 then
            names[#names + 1] = some[i]
        end
    end
    return names, true
end

local function by_rank(one, other)
    if one.priority ~= other.priority then
        return one.priority < other.priority
    end
    return before(one.member, other.member)
end

-- The queues in their order, those behind `after` first.
local function in_turn(queues, after)
    table.sort(queues, function(one, other)
        local late, later = one <= after, other <= after
        if late ~= later then
            return later
        end
        return one < other
    end)
    return queues
end

-- What is ready of one lane, for which no turns are to be thought of. The runs of sessions are in sets that are named
-- otherwise.
local function claim_in_order(name, slots)
    local key, claims, removed = ready_key(name), 0, {}
    local members = call('ZRANGE', key, 0, slots) -- One more than there is room for, which tells that there is more.
    if not members[1] then
        cool(name)
        return false
    end
    while claims < slots and members[claims + 1] do
        local member = members[claims + 1]
        local run = find(id_of(member), true)
        if not fits(run) then
            break
        end
        claims, run.ready = claims + 1, false
        removed[claims] = member
        take(run)
    end
    if claims > 0 then
        call('ZREM', key, unpack(removed))
    end
    return members[claims + 1] ~= nil
end

-- Claims where there is nothing to be looked at but what is ready. Returns whether there is more.
function claim_by_turns(names, slots, after)
    if #names == 1 and string.sub(names[1], -1) == ';' then
        return claim_in_order(names[1], slots)
    end
    local lines, queues = {}, {}
    for _, name in ipairs(names) do
        local members = call('ZRANGE', ready_key(name), 0, slots, 'WITHSCORES')
        if #members == 0 then
            cool(name)
        else
            local queue = find(id_of(members[1]), true).fact.queue
            local line = lines[queue]
            if not line then
                line = { at = 1 }
                lines[queue] = line
                queues[#queues + 1] = queue
            end
            line.names = (line.names or 0) + 1
            local n = #line
            for i = 1, #members, 2 do
                n = n + 1
                line[n] = { member = members[i], priority = members[i + 1], name = name }
            end
        end
    end
    for _, queue in ipairs(queues) do
        if lines[queue].names > 1 then
            for _, head in ipairs(lines[queue]) do
                head.priority = tonumber(head.priority)
            end
            table.sort(lines[queue], by_rank)
        end
    end
    in_turn(queues, after)
    local removed, of_sessions, left, full = {}, {}, slots, false
    while left > 0 and #queues > 0 and not full do
        local going_on = {}
        for _, queue in ipairs(queues) do
            local line = lines[queue]
            local head = line[line.at]
            if head and left > 0 and not full then
                local run = find(id_of(head.member), true)
                if fits(run) then
                    if run.fact.session then
                        of_sessions[head.name] = true
                    else
                        local members = removed[head.name] or {}
                        removed[head.name], members[#members + 1] = members, head.member
                        run.ready = false
                    end
                    take(run)
                    line.at, left = line.at + 1, left - 1
                    going_on[#going_on + 1] = queue
                else
                    full = true
                end
            end
        end
        queues = going_on
    end
    for name, members in pairs(removed) do
        call('ZREM', ready_key(name), unpack(members))
    end
    for _, line in pairs(lines) do
        if line[line.at] then
            return true
        end
    end
    for name in pairs(of_sessions) do
        flush_set(ready_key(name))
        if call('EXISTS', ready_key(name)) == 1 then -- Another run has taken the seat that one left.
            return true
        end
    end
    return false
end

-- Keeps runs until the time at which the rates of their groups let them begin: one behind the other, so that they do not
-- all come at once to find that one of them may.
local function put_off(late)
    local before, times = {}, {}
    for i, run in ipairs(late) do
        local name = P .. 'late:' .. group_of(run).name
        flush_set(name)
        local priority, member = rank(run)
        call('ZADD', name, priority, member)
        local ahead = call('ZRANK', name, member)
        call('ZREM', name, member)
        before[run.fact.group] = before[run.fact.group] or 0
        times[i] = rates.opens_at(rates.of_group(run), math.min(ahead, 500) + before[run.fact.group])
        before[run.fact.group] = before[run.fact.group] + 1
    end
    for i, run in ipairs(late) do
        change(run).held = 'rate'
        move(run, 'scheduled', times[i])
    end
end

-- Claims run by run, looking at budgets and sessions each time. Returns whether more may begin now, and when the first of
-- those may that only a rate of their lane keeps.
function claim_within_budgets(names, slots, after)
    rates.read()
    local rooms = claimer.sessions - call('SCARD', P .. 'sessions:' .. claimer.worker)
    local heads, closed, lanes, opens, late = {}, {}, {}, nil, {}
    local passed, put, more = {}, {}, false -- Whose group's rate keeps them, and where to look behind these.

    local function head_of(name)
        if heads[name] == nil then
            flush_set(ready_key(name))
            local at, got = put[name] or 0, nil
            repeat
                got = call('ZRANGE', ready_key(name), at, at, 'WITHSCORES')
                at = at + 1
            until not passed[got[1]]
            put[name] = at - 1
            heads[name] = got[1] and { member = got[1], priority = tonumber(got[2]), name = name } or false
        end
        return heads[name]
    end

    -- When the rates of the lane of a ready set let one more run begin; nil when something else does not.
    local function lane_opens(name)
        local opens_then = now
        for _, budget in ipairs(rates.of_lane(lanes[name])) do
            if budget.left and budget.left <= 0 then
                return nil
            end
            if budget.rate then
                opens_then = math.max(opens_then, rates.opens_at(budget.rate, 0))
            end
        end
        if string.sub(name, -1) == '@' and rooms <= 0 then
            return nil
        end
        return opens_then
    end

    -- Whether the lane of a ready set lets one more run begin; one that does not is closed, since budgets only get less.
    local function open(name)
        lanes[name] = lanes[name] or lane_of(name)
        if not closed[name] and lane_opens(name) ~= now then
            closed[name] = true
        end
        return not closed[name]
    end

    -- What else is ready of a session, in whatever lane, is the worker's own when one of its runs was claimed.
    local function own_names()
        local seen = {}
        for _, name in ipairs(names) do
            seen[name] = true
        end
        for i = 1, #names do
            local own = names[i] .. claimer.worker
            if string.sub(names[i], -1) == '@' and not seen[own] then
                names[#names + 1] = own
            end
        end
    end

    -- The queues in their turns, each with the heads of its ready sets by rank, worked out once: a claim changes one of
    -- them. Those of lanes that are closed stay until they come first.
    local queues, lines, turn

    local function insert(line, head)
        local low, high = 1, #line + 1
        while low < high do
            local middle = math.floor((low + high) / 2)
            if by_rank(line[middle], head) then
                low = middle + 1
            else
                high = middle
            end
        end
        table.insert(line, low, head)
    end

    local function look()
        queues, lines, turn = {}, {}, 1
        for _, name in ipairs(names) do
            local head = head_of(name)
            if head then
                lanes[name] = lanes[name] or lane_of(name)
                local queue = lanes[name].queue
                if not lines[queue] then
                    lines[queue] = {}
                    queues[#queues + 1] = queue
                end
                table.insert(lines[queue], head)
            end
        end
        for _, line in pairs(lines) do
            table.sort(line, by_rank)
        end
        in_turn(queues, after)
    end

    -- The head that comes next; queues that have none any more lose their turns.
    local function next_head()
        while queues[turn] do
            local line = lines[queues[turn]]
            while line[1] and not open(line[1].name) do
                table.remove(line, 1)
            end
            if line[1] then
                return line[1]
            end
            table.remove(queues, turn)
            turn = queues[turn] and turn or 1
        end
    end

    -- The first one of a queue is not the head of its ready set any more.
    local function step(head)
        local line = lines[lanes[head.name].queue]
        table.remove(line, 1)
        heads[head.name] = nil
        local following = head_of(head.name)
        if following then
            insert(line, following)
        end
    end

    look()
    while true do
        local head = next_head()
        if not head then
            break
        end
        local run = find(id_of(head.member))
        local rate = rates.of_group(run)
        if slots <= 0 or #late >= ROUND then
            more = true
            break
        elseif rate and rates.opens_at(rate, 0) > now then
            -- It stays where it is until all is claimed, and is passed over.
            late[#late + 1] = run
            passed[head.member] = true
            step(head)
        elseif not fits(run) then
            more = true
            break
        else
            for _, budget in ipairs(rates.of_lane(lanes[head.name])) do
                if budget.left then
                    budget.left = budget.left - 1
                end
                if budget.rate then
                    rates.spend(budget.rate)
                end
            end
            if rate then
                rates.spend(rate)
            end
            if string.sub(head.name, -1) == '@' then
                rooms = rooms - 1
                -- All that is ready of the session becomes the worker's: a bounded number, then the next exchange goes on.
                steps = steps - session_of(run).seated
                if steps <= 0 then
                    rooms, more = 0, true
                end
                own_names()
            end
            take(run)
            slots, after = slots - 1, queues[turn]
            if run.fact.session then
                heads, put = {}, {} -- Others of its session come and go.
                look()
            else
                step(head)
                turn = turn % #queues + 1
            end
        end
    end
    for name, head in pairs(heads) do
        local opens_then = head and lane_opens(name)
        if opens_then and opens_then > now then
            opens = opens and math.min(opens, opens_then) or opens_then
        end
    end
    for name, head in pairs(heads) do
        if not head and put[name] == 0 then
            cool(name)
        end
    end
    rates.note()
    if #late > 0 then
        put_off(late)
        -- Others of their groups may have come in their places, in whatever ready sets, and were not looked at.
        for _, name in ipairs((ready_names(claimer.worker))) do
            if not more and open(name) then
                flush_set(ready_key(name))
                more = call('EXISTS', ready_key(name)) == 1
            end
        end
    end
    return more, opens
end

-- Until when the worker keeps the first of the sessions of which no run is there, if it may own no more of them.
function room_at(names)
    local wanted = false
    for _, name in ipairs(names) do
        flush_set(ready_key(name))
        wanted = wanted or (string.sub(name, -1) == '@' and call('EXISTS', ready_key(name)) == 1)
    end
    if not wanted or call('SCARD', P .. 'sessions:' .. claimer.worker) < claimer.sessions then
        return nil
    end
    flush_set(K.idle)
    local idle = call('ZRANGEBYSCORE', K.idle, 1, '+inf', 'WITHSCORES', 'LIMIT', 0, LOOKED_AT)
    for i = 1, #idle, 2 do
        local session = shared(sessions, 'session', idle[i])
        if session and session.owner == claimer.worker then
            return tonumber(idle[i + 1])
        end
    end
    return #idle == 2 * LOOKED_AT and tonumber(idle[#idle]) or nil -- Then it looks again.
end
end
