-- Incarnations of workers: what becomes of the runs of one that is gone.

-- Forgets an incarnation that owns nothing any more.
local function forget(number)
    for _, name in ipairs(call('SMEMBERS', P .. 'sessions:' .. number)) do
        local session = shared(sessions, 'session', name)
        if session then
            hand_over(session, nil)
            tell('work')
        end
    end
    local own = '@' .. number
    for _, name in ipairs(call('SMEMBERS', K.hot)) do
        if string.sub(name, -#own) == own then
            cool(name)
        end
    end
    call('HDEL', K.workers, number)
    call('HDEL', K.takes, number)
    call('HDEL', K.parked, number)
    call('HDEL', K.pushes, number)
    call('ZREM', K.lease, number)
    call('DEL', P .. 'served:' .. number, P .. 'owned:' .. number, P .. 'stop:' .. number, P .. 'sessions:' .. number,
        P .. 'pushed:' .. number)
end

local function owned_runs(number)
    local found = {}
    for i, id in ipairs(call('SMEMBERS', P .. 'owned:' .. number)) do
        found[i] = find(id)
    end
    table.sort(found, function(one, other)
        return one.s.seq < other.s.seq
    end)
    return found
end

-- How long a run stays away that crashed its worker so often (see perdure.model.crash_backoff).
local function longest_pause(crashes)
    return crashes < 2 and 0 or math.min(60000, 500 * 2 ^ crashes)
end

-- The most crashes of runs that an incarnation owns, how many have so many, and the number of the claim that came last of
-- these.
local function suspicion(suspects)
    local most, blamed, last = 0, 0, -1
    for _, run in ipairs(suspects) do
        most = math.max(most, run.s.crashes or 0)
    end
    for _, run in ipairs(suspects) do
        if (run.s.crashes or 0) == most then
            blamed, last = blamed + 1, math.max(last, run.s.low)
        end
    end
    return most, blamed, last
end

-- Takes back the runs of an incarnation that died, as perdure.blame.judge explains; returns how many. Of one that owned
-- runs in several partitions, `judged` says what holds for all of them together.
local function take_back(number, judged)
    local suspects = owned_runs(number)
    local most, blamed, last = suspicion(suspects)
    if judged then
        most, blamed, last = unpack(judged)
    end
    for _, run in ipairs(suspects) do
        local s = change(run)
        local pause = 0
        local crashes = s.crashes or 0
        local failed = false
        if crashes == most then
            crashes = crashes + 1
            failed = crashes >= (run.fact.max_crashes or 5) * (blamed == 1 and 1 or 4)
            local longest = longest_pause(crashes)
            if blamed == 1 then
                pause = math.floor(math.random() * longest)
            elseif run.s.low ~= last then
                pause = math.floor(longest / 2 + math.random() * longest / 2)
            end
        end
        s.crashes = crashes > 0 and crashes or nil
        if failed then
            local error = string.gsub(POISONED_ERROR, '987654321', tostring(crashes))
            finish(run, 'failed', error, POISONED)
        else
            s.attempt = (s.attempt or 1) + 1
            if pause > 0 and not s.why then
                move(run, 'scheduled', now + pause)
            else
                move(run, 'queued')
            end
        end
        s.cut = true
    end
    if #suspects > 0 then
        tell('work')
        tell('status')
    end
    forget(number)
    return #suspects
end
