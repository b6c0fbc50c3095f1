-- Groups: a run takes part in its group while it is queued or running, and, as declared, while it waits or backs off:
-- then it has a slot (`slot` 1) or stands in the line for one (2); otherwise it takes no part (0). A group counts its
-- slots, how many of them run, and its line. :line holds those in the line, :early the queued ones with a slot that may
-- lose it (they have not begun, or keep no slot), :begun all others with a slot; each by priority, then number.
-- :late holds those that the group's rate has put off (state scheduled, held for `rate`), by priority, then place.

local group_of, regroup, settle_group, join_group, leave_group

do
local function new_group(run)
    local most, paused = run.fact.group_limit or 1, nil
    local scope = call('HGET', K.scope, 'group:' .. run.fact.group)
    if scope then
        scope = unpacked(scope)
        most, paused = scope.running or most, scope.paused or nil
    end
    return {
        asked = run.fact.group_limit or 1, most = most, paused = paused,
        slots = 0, running = 0, lined = 0, runs = 0,
    }
end

function group_of(run)
    local name = run.fact.group_name
    return name and shared(groups, 'group', name, new_group, run) or nil
end

local function in_group(run)
    return run.fact.priority, order(run.s.seq) .. run.id
end

local function member_id(member)
    return string.sub(member, 9)
end

-- Which of a group's sets the run is in, by what is known of it; "" for none.
local function group_set(run)
    local s = run.s
    if s.slot == 2 then
        return 'line:'
    elseif s.slot ~= 1 then
        return ''
    end
    local may_lose = run.fact.no_keep or not s.begun
    return may_lose and (s.state == 'queued' or s.held == 'rate') and 'early:' or 'begun:'
end

-- As what of its group's the run is counted in reports on queues.
local function kept_as(s)
    if s.slot == 2 or (s.slot == 1 and s.held == 'group') then
        return 'group'
    elseif s.slot == 1 and s.held == 'paused' then
        return 'group paused'
    elseif s.held == 'rate' then
        return 'rate'
    end
end

-- In which of the group's sets the run is, and as what it is counted, follows from what is kept of it: noted when that is
-- read, and brought up to date with what becomes of it.
function note_found(run)
    local s = run.s
    run.set, run.late, run.counted = group_set(run), s.held == 'rate', kept_as(s)
    run.has_slot, run.runs_now = s.slot == 1, s.slot == 1 and s.state == 'running'
end

-- Brings the sets and counts of the group up to date with its run.
local function note(run, group)
    local s = run.s
    local set = group_set(run)
    local was = run.set or ''
    if set ~= was then
        if was ~= '' then
            zrem(P .. was .. group.name, order(s.seq) .. run.id)
        end
        if set ~= '' then
            zadd(P .. set .. group.name, in_group(run))
        end
        group.lined = group.lined + (set == 'line:' and 1 or 0) - (was == 'line:' and 1 or 0)
        run.set = set
    end
    local late = s.held == 'rate'
    if late ~= (run.late or false) then
        if late then
            zadd(P .. 'late:' .. group.name, rank(run))
        else
            zrem(P .. 'late:' .. group.name, s.place .. run.id)
        end
        run.late = late
    end
    local kept = kept_as(s)
    if kept ~= run.counted then
        if run.counted then
            count(run.fact.lane, run.counted, -1)
        end
        if kept then
            count(run.fact.lane, kept, 1)
        end
        run.counted = kept
    end
    local has, had = s.slot == 1, run.has_slot or false
    if has ~= had then
        group.slots = group.slots + (has and 1 or -1)
        run.has_slot = has
    end
    local runs_now, ran = has and s.state == 'running', run.runs_now or false
    if runs_now ~= ran then
        group.running = group.running + (runs_now and 1 or -1)
        run.runs_now = runs_now
    end
    group.changed = true
end

-- Something about a run of a group was changed that this module decides on.
function regroup(run, group)
    change(run)
    note(run, group)
    follow(run)
end

local function to_line(run, group)
    local s = run.s
    if s.wake then
        zrem(K.timer, run.id)
        s.wake = nil
    end
    if s.state ~= 'queued' then
        count(run.fact.lane, s.state, -1)
        count(run.fact.lane, 'queued', 1)
        s.state = 'queued'
    end
    s.slot, s.held = 2, 'group'
    regroup(run, group)
end

-- Slots that are free go to the first ones in the line.
local function admit(group)
    while group.lined > 0 and not group.paused and group.slots < group.most do
        local key = P .. 'line:' .. group.name
        flush_set(key)
        local run = find(member_id(call('ZRANGE', key, 0, 0)[1]))
        local s = change(run)
        s.slot, s.held = 1, nil
        s.place = s.place or next_turn()
        regroup(run, group)
    end
end

-- The queued runs that have a slot, in order.
local function queued_holders(group)
    local found = {}
    for _, set in ipairs({ 'early:', 'begun:' }) do
        local key = P .. set .. group.name
        flush_set(key)
        local members = call('ZRANGE', key, 0, -1, 'WITHSCORES')
        for i = 1, #members, 2 do
            local run = find(member_id(members[i]))
            if run.s.state == 'queued' then
                found[#found + 1] = { run = run, priority = tonumber(members[i + 1]), member = members[i] }
            end
        end
    end
    table.sort(found, function(one, other)
        if one.priority ~= other.priority then
            return one.priority < other.priority
        end
        return before(one.member, other.member)
    end)
    return found
end

-- The limit of a group was changed, it was paused or resumed, or it has more slots out than its limit and a run of it
-- comes or goes. What has not begun goes back into the line: what is too much, the last ones first, or all of it. What
-- has begun keeps its slot; of those that are queued no more are let through, in order, than the limit leaves beside
-- those that are running.
function settle_group(group)
    local key = P .. 'early:' .. group.name
    flush_set(key)
    local back = group.paused and group.slots or math.max(0, group.slots - group.most)
    if back > 0 then
        for _, member in ipairs(call('ZREVRANGE', key, 0, back - 1)) do
            to_line(find(member_id(member)), group)
        end
    end
    local may = group.most - group.running
    group.over = nil
    for i, each in ipairs(queued_holders(group)) do
        local s = each.run.s
        local held
        if group.paused then
            held = 'paused'
        elseif i > may then
            held, group.over = 'group', true
        elseif s.held ~= 'group' and s.held ~= 'paused' then
            held = s.held
        end
        if held ~= s.held then
            s.held = held
            regroup(each.run, group)
        end
    end
    group.changed = true
    admit(group)
end

-- A run comes into the queue of its group: it takes a free slot (if there is one, nobody is in the line), or stands in
-- the line. If it comes before one that has a slot and may lose it, that one goes back into the line.
function join_group(run, group)
    local s = run.s
    if s.slot == 1 then
        if group.paused then
            s.held = 'paused'
        end
        regroup(run, group)
        if group.slots > group.most then
            settle_group(group)
        end
        return
    end
    if not group.paused and group.slots < group.most then
        s.slot, s.place = 1, s.place or own_place(run)
        regroup(run, group)
        return
    end
    s.slot, s.held = 2, 'group'
    regroup(run, group)
    if group.paused then
        return
    end
    local key = P .. 'early:' .. group.name
    flush_set(key)
    local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    if last[1] then
        local priority, member = in_group(run)
        local theirs = tonumber(last[2])
        if theirs > priority or (theirs == priority and before(member, last[1])) then
            to_line(find(member_id(last[1])), group)
            admit(group)
        end
    end
end

-- A run is not queued or running any more.
function leave_group(run, group, was)
    local s = run.s
    local counted_before = run.has_slot and (was == 'queued' or was == 'running')
    if FINAL[s.state] or (s.held ~= 'rate' and (run.fact.no_keep or s.slot == 2 or not s.begun)) then
        s.slot = 0
        s.held = nil
    end
    note(run, group)
    follow(run)
    if counted_before and group.over then
        settle_group(group)
    end
    admit(group)
end
end
