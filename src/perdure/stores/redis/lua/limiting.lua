-- Limits, rates and pauses of scopes: each change is a revision, and takes effect in the same script.

local limits_of, equal_limits, read_scope, apply, revise, running_lanes, show_scope, tell_scope

do
-- Limits are maps of `running`, `count`, `period` and `burst` (of the rate), as far as they are set.
local LIMITS = { 'running', 'count', 'period', 'burst' }

function limits_of(from)
    local found = {}
    for _, name in ipairs(LIMITS) do
        found[name] = from[name]
    end
    return found
end

-- As a part of what is packed: nothing, when none is set (an empty map would become an empty list).
local function said_limits(from)
    local found = limits_of(from)
    return next(found) and found
end

function equal_limits(one, other)
    for _, name in ipairs(LIMITS) do
        if one[name] ~= other[name] then
            return false
        end
    end
    return true
end

function read_scope(scope)
    local packed = call('HGET', K.scope, scope)
    return packed and unpacked(packed) or nil
end

-- What a rate has counted stays counted when the rate changes: debts are in parts of a run, of which `period` are one.
-- In two steps, so that no number is longer than those of Lua can be.
local function converted(debt, from, to)
    local whole = math.floor(debt / from)
    return whole * to + math.ceil((debt - whole * from) * to / from)
end

local function put_debt(scope, old, new)
    if not new.count then
        call('HDEL', P .. 'debt', scope)
    elseif old.count and old.period ~= new.period then
        local packed = call('HGET', P .. 'debt', scope)
        if packed then
            local debt = unpacked(packed)
            call('HSET', P .. 'debt', scope, pack({ converted(debt[1], old.period, new.period), debt[2] }))
        end
    end
end

-- What claims have to look at.
local function put_budget(kind, name, new)
    local key, field, matters = 'budget', kind .. ':' .. name, new.running or new.count
    if kind == 'group' then
        key, field, matters = 'rated', name, new.count
    end
    if matters then
        call('HSET', P .. key, field, pack(limits_of(new)))
    else
        call('HDEL', P .. key, field)
    end
end

local function groups_named(name)
    local found = {}
    for i, each in ipairs(call('SMEMBERS', P .. 'groups:' .. name)) do
        found[i] = shared(groups, 'group', each)
    end
    return found
end

-- Queues the runs that the rate of their group has put off: whoever comes to them looks at the rate that holds now.
-- The last ones first, and no more than there were: those that are put off anew come first.
local function let_in(group)
    local key = P .. 'late:' .. group.name
    flush_set(key)
    local late = call('ZCARD', key)
    if late > 0 then
        begin_chore('let_in', group.name, { late = late })
    end
end

function chore_kinds.let_in(name, chore)
    local key, most = P .. 'late:' .. name, math.min(steps + 1, chore.late)
    flush_set(key)
    local members = call('ZREVRANGE', key, 0, most - 1)
    for _, member in ipairs(members) do
        move(find(id_of(member)), 'queued')
    end
    steps, chore.late = steps - #members, chore.late - #members
    return chore.late <= 0 or #members < most
end

-- The part of limits that one of several partitions has: rounded up, but for rates, which run out that much slower.
local function share_of(limits, partitions)
    local share = limits_of(limits)
    if partitions then
        share.running = share.running and math.ceil(share.running / partitions)
        share.period = share.period and share.period * partitions
        share.burst = share.burst and math.ceil(share.burst / partitions)
    end
    return share
end

-- Has a scope go by what holds from now on; `old` is what held.
function apply(kind, name, old, new, partitions)
    local scope = kind .. ':' .. name
    if kind == 'group' then
        partitions = nil -- All of its runs are in one partition.
    end
    local share = share_of(new, partitions)
    put_debt(scope, share_of(old, partitions), share)
    put_budget(kind, name, share)
    call('HSET', P .. 'scope', scope, pack(new))
    if kind == 'group' then
        local found = groups_named(name)
        for _, group in ipairs(found) do
            group.most, group.paused = new.running or group.asked, new.paused or nil
            settle_group(group, true)
        end
        if old.count ~= new.count or old.period ~= new.period or old.burst ~= new.burst then
            for _, group in ipairs(found) do
                let_in(group)
            end
        end
    elseif (old.paused or false) ~= (new.paused or false) then
        begin_chore('lanes', '', { cursor = '0' })
    end
    tell('work')
end

-- Keeps what holds for a scope from now on as a revision; `old` is what held.
function revise(kind, name, old, new, who)
    local scope = kind .. ':' .. name
    local number = next_number('revision')
    local revision = pack({
        number = number, kind = kind, name = name, who = who, at = now, old = said_limits(old), new = said_limits(new),
        was_paused = old.paused or false, paused = new.paused or false,
    })
    call('LPUSH', P .. 'revisions', revision)
    call('LPUSH', P .. 'revisions:' .. scope, revision)
    new.revision, new.who, new.at = number, who, now
    apply(kind, name, old, new, args.partitions)
end

-- How many runs of each lane run: a list of {queue, workflow, running}.
function running_lanes()
    local found, lanes = {}, call('HKEYS', K.lanes)
    for first = 1, #lanes, 1000 do
        local fields = {}
        for i = first, math.min(first + 999, #lanes) do
            fields[#fields + 1] = 'running:' .. lanes[i]
        end
        for i, running in ipairs(call('HMGET', K.counts, unpack(fields))) do
            if running then
                local lane = lane_of(lanes[first + i - 1])
                found[#found + 1] = { queue = lane.queue, workflow = lane.workflow, running = tonumber(running) }
            end
        end
    end
    return found
end

-- A scope with how much of it is used. To be called when all is flushed.
function show_scope(kind, name, kept, running)
    local shown = limits_of(kept)
    shown.kind, shown.name, shown.paused = kind, name, kept.paused or false
    shown.revision, shown.who, shown.at = kept.revision, kept.who, kept.at
    local used = 0
    if kind == 'group' then
        local found = groups_named(name)
        for _, group in ipairs(found) do
            used = used + group.slots
        end
        shown.queues = #found
    else
        for _, lane in ipairs(running) do
            if kind == 'namespace' or lane[kind] == name then
                used = used + lane.running
            end
        end
    end
    shown.used = used
    return shown
end

-- The reply about one scope: nothing, when nothing was ever set for it; and what is left to be done.
function tell_scope(kind, name)
    local left = chores_left()
    flush()
    local kept = read_scope(kind .. ':' .. name)
    return pack({ left or 0, { kept and show_scope(kind, name, kept, running_lanes()) } })
end
end
