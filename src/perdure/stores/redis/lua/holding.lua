-- What keeps a run from being claimed, decided when something changes: only what may be claimed lies in a ready set.
-- Here are the ready sets and the order in them; seating.lua and grouping.lua say what sessions and groups hold back, and
-- moving.lua is where runs change their states.

local groups, sessions = {}, {}
local made_hot = {} -- the ready sets that are known to be in :hot
local enter, leave_ready, alone_in_ready -- of the ready set, see below

-- A record that several runs share, read once, and written when it was changed.
-- `fresh` makes one for the first `run`.
local function shared(kept, key, name, fresh, run)
    local record = kept[name]
    if record == nil then
        local packed = call('HGET', P .. key, name)
        record = packed and unpacked(packed) or fresh and fresh(run) or false
        if record then
            record.name = name
        end
        kept[name] = record
    end
    return record or nil
end

local function flush_shared(kept, key, unused)
    local fields, n = {}, 0
    for name, record in pairs(kept) do
        if record and record.changed then
            record.changed, record.name = nil, nil
            if unused(record) then
                call('HDEL', P .. key, name)
                kept[name] = nil
            else
                fields[n + 1], fields[n + 2] = name, pack(record)
                n = n + 2
                record.name = name
            end
        end
    end
    for first = 1, n, 1000 do
        call('HSET', P .. key, unpack(fields, first, math.min(first + 999, n)))
    end
end

resets[#resets + 1] = function()
    if next(groups) or next(sessions) or next(made_hot) then
        groups, sessions, made_hot = {}, {}, {}
    end
end
local function has_no_runs(record)
    return record.runs <= 0 and not record.owner
end
flushers[#flushers + 1] = function()
    flush_shared(groups, 'group', has_no_runs)
    flush_shared(sessions, 'session', has_no_runs)
end

-- THE READY SET

local function ready_name(run)
    local owner = run.s.owner
    if not owner then
        return run.fact.lane
    end
    return run.fact.lane .. '@' .. (owner > 0 and owner or '')
end

function enter(run)
    local name = ready_name(run)
    zadd(P .. 'ready:' .. name, run.fact.priority, run.s.place .. run.id)
    if not made_hot[name] then
        made_hot[name] = true
        sadd(K.hot, name)
    end
    made_ready = true
end

-- Nobody need look at a ready set any more, until something enters it again.
local function cool(name)
    call('SREM', K.hot, name)
    made_hot[name] = nil
end

function leave_ready(run)
    local name = ready_name(run)
    local key, member = P .. 'ready:' .. name, run.s.place .. run.id
    if run.is_new then
        local was_to_come, alone = take_back_add(key, member)
        if alone and take_back_add(K.hot, name) then
            made_hot[name] = nil
        end
        if was_to_come then
            return
        end
    end
    zrem(key, member)
end

-- Whether a run is the only one in its ready set.
function alone_in_ready(run)
    local key = P .. 'ready:' .. ready_name(run)
    local waiting = pending[key]
    if waiting and waiting.command == 'ZADD' and #waiting == 2 then
        return call('ZCARD', key) == 0
    end
    flush_set(key)
    return call('ZCARD', key) == 1
end

-- Places are compared as bytes: the number of the run, then, for one that comes from a line, its turn. That goes behind
-- all that were enqueued before, and behind all that came from a line before: so groups take turns.
local function own_place(run)
    return order(run.s.seq) .. order(0)
end

local function next_turn()
    local newest = last_number('seq')
    if last_number('turn_seq') < newest then
        set_number('turn_seq', newest)
        set_number('turn', 0)
    end
    last_number('turn')
    return order(numbers.turn_seq) .. order(next_number('turn'))
end
