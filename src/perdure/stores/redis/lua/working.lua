-- Incarnations of workers: what becomes of the runs of one that is gone.

-- An incarnation is gone: it claims nothing any more, and does not come back. What it has is let go of.
local function dismiss(number)
    call('HDEL', K.takes, number)
    call('HDEL', K.parked, number)
    call('ZREM', K.lease, number)
end

-- Forgets an incarnation that owns no runs any more: its sessions first, then what it was tied to, from a cursor.
function chore_kinds.forget(number, chore)
    local key = P .. 'sessions:' .. number
    for _, name in ipairs(call('SRANDMEMBER', key, 4)) do
        local session = shared(sessions, 'session', name)
        if session then
            hand_over(session, nil)
            steps = steps - 1 - session.seated
            tell('work')
        else
            call('SREM', key, name)
        end
    end
    if call('EXISTS', key) == 1 then
        return false
    end
    local own, cold = '@' .. number, {}
    flush_set(K.hot)
    local scanned = call('SSCAN', K.hot, chore.cursor, 'COUNT', 250)
    for _, name in ipairs(scanned[2]) do
        if string.sub(name, -#own) == own then
            cold[#cold + 1] = name
            made_hot[name] = nil
        end
    end
    if #cold > 0 then
        call('SREM', K.hot, unpack(cold))
    end
    steps, chore.cursor = steps - math.ceil(#scanned[2] / 10), scanned[1]
    if chore.cursor ~= '0' then
        return false
    end
    call('HDEL', K.workers, number)
    call('HDEL', K.pushes, number)
    call('HDEL', K.scan, 'stop:' .. number, 'sessions:' .. number)
    call('UNLINK', P .. 'served:' .. number, P .. 'owned:' .. number, P .. 'stop:' .. number, P .. 'pushed:' .. number)
    return true
end

-- Some of the runs that an incarnation owns, in order, and whether those are all.
local function owned_runs(number, most)
    local key, found = P .. 'owned:' .. number, {}
    flush_set(key)
    local ids = call('SRANDMEMBER', key, most)
    for _, id in ipairs(ids) do
        local run = find(id)
        if run then
            found[#found + 1] = run
        else
            srem(key, id)
        end
    end
    table.sort(found, function(one, other)
        return one.s.seq < other.s.seq
    end)
    return found, #ids < most
end

-- Ends an incarnation in good order: what it owns is queued again and not counted.
local function retire(number)
    dismiss(number)
    begin_chore('retire', number, {})
end

function chore_kinds.retire(number)
    local owned, all = owned_runs(number, steps + 1)
    local stopping = {}
    for _, run in ipairs(owned) do
        move(run, 'queued')
        stopping[#stopping + 1] = run.s.why and run
        tell('work')
        tell('status')
    end
    end_held(stopping)
    steps = steps - #owned
    if all then
        begin_chore('forget', number, { cursor = '0' })
    end
    return all
end

-- How long a run stays away that crashed its worker so often (see perdure.blame.crash_backoff).
local function longest_pause(crashes)
    return crashes < 2 and 0 or math.min(60000, 500 * 2 ^ crashes)
end

-- The most crashes of runs that an incarnation owns, how many have so many, and the number of the claim that came last of
-- these; in parts, from a cursor. `first` is the first of these: a part may bring one again.
local function suspect(number, judged)
    local from = judged.cursor ~= '' and judged.cursor or '0'
    local scanned = call('SSCAN', P .. 'owned:' .. number, from, 'COUNT', 50)
    for _, id in ipairs(scanned[2]) do
        local run = find(id)
        local crashes = run and run.s.crashes or 0
        if run and crashes > judged.most then
            judged.most, judged.blamed, judged.last, judged.first = crashes, 1, run.s.low, id
        elseif run and crashes == judged.most and id ~= judged.first then
            judged.blamed, judged.last = judged.blamed + 1, math.max(judged.last, run.s.low)
        end
    end
    steps, judged.cursor = steps - #scanned[2], scanned[1]
    return judged.cursor == '0'
end

local taken -- how many runs were taken back
resets[#resets + 1] = function()
    taken = 0
end

-- Takes back the runs of an incarnation that died, as perdure.blame.judge explains. Of one that owned runs in several
-- partitions, `judged` says what holds for all of them together.
local function take_back(number, judged)
    dismiss(number)
    if judged then
        begin_chore('take_back', number, { most = judged[1], blamed = judged[2], last = judged[3] })
    else
        begin_chore('judge', number, { cursor = '', most = -1, blamed = 0, last = -1 })
    end
end

function chore_kinds.judge(number, judged)
    local all = suspect(number, judged)
    if all then
        begin_chore('take_back', number, { most = judged.most, blamed = judged.blamed, last = judged.last })
    end
    return all
end

function chore_kinds.take_back(number, judged)
    local owned, all = owned_runs(number, steps + 1)
    local stopping = {}
    for _, run in ipairs(owned) do
        local s = mark(run)
        local pause = 0
        local crashes = s.crashes or 0
        local failed = false
        if crashes == judged.most then
            crashes = crashes + 1
            failed = crashes >= (run.fact.max_crashes or 5) * (judged.blamed == 1 and 1 or 4)
            local longest = longest_pause(crashes)
            if judged.blamed == 1 then
                pause = math.floor(math.random() * longest)
            elseif run.s.low ~= judged.last then
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
            s.cut = true
            stopping[#stopping + 1] = s.why and run
        end
    end
    end_held(stopping)
    if #owned > 0 then
        tell('work')
        tell('status')
    end
    steps, taken = steps - #owned, taken + #owned
    if all then
        begin_chore('forget', number, { cursor = '0' })
    end
    return all
end
