-- Groups: a run takes part in its group while it is queued or running, and, as declared, while it waits or backs off:
-- then it has a slot (`slot` 1) or stands in the line for one (2); otherwise it takes no part (0). A group counts its
-- slots, how many of them run, and those in its sets, each of them by priority, then number. :line holds those in the
-- line, :early the queued ones with a slot that may lose it (they have not begun, or keep no slot). Of the others with a
-- slot, :again holds those that are queued, :held and :stopped those of these that are kept from beginning, as more have
-- slots than the limit has, or as the group is paused, and :begun those that are not queued. :resting holds those that
-- may lose their slot and came back while the group was paused.
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
        slots = 0, running = 0, runs = 0,
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

-- A run that takes a slot and is claimed goes through several sets in one call: it is put where it comes to at last, or
-- where it is when somebody looks. `moved` has the runs of a group, by its name, that are not where its sets have them, and
-- whether some of these belong into its line, or do no more.
local moved = {}
-- The first ones in the line of a group, by its name, as they were read last; `at` is where the first of those is that are
-- there still.
local fronts = {}
local FRONT = 16 -- The most that are read at once.

resets[#resets + 1] = function()
    if next(moved) or next(fronts) then
        moved, fronts = {}, {}
    end
end

local function place(name)
    local runs_moved = moved[name]
    if not runs_moved then
        return
    end
    moved[name] = nil
    for _, run in ipairs(runs_moved) do
        if run.lies ~= run.set and run.lies ~= '' then
            zrem(P .. run.lies .. name, order(run.s.seq) .. run.id)
        end
    end
    for _, run in ipairs(runs_moved) do
        if run.lies ~= run.set and run.set ~= '' then
            zadd(P .. run.set .. name, in_group(run))
        end
        run.lies = nil
    end
end
flushers[#flushers + 1] = function()
    for name in pairs(moved) do
        place(name)
    end
end

-- A run comes into another one of its group's sets.
local function put(run, name, was, set)
    local runs_moved = moved[name]
    if not runs_moved then
        runs_moved = {}
        moved[name] = runs_moved
    end
    if not run.lies then -- Where it is still.
        runs_moved[#runs_moved + 1] = run
        run.lies = was
    end
    run.set = set
    if was == 'line:' or set == 'line:' then
        runs_moved.in_line = true
        local front = fronts[name]
        if front and front[front.at] == run.id then
            front.at = front.at + 1
        else
            fronts[name] = nil
        end
    end
end

-- The sets whose members are counted, and as what: nothing, when there are none.
local COUNTED = {
    ['line:'] = 'lined', ['early:'] = 'early', ['again:'] = 'again', ['held:'] = 'held', ['stopped:'] = 'stopped',
    ['resting:'] = 'resting',
}

local function may_lose_slot(run)
    return run.fact.no_keep or not run.s.begun
end

-- Which of a group's sets the run is in, by what is known of it; "" for none.
local function group_set(run)
    local s = run.s
    if s.slot == 2 then
        return 'line:'
    elseif s.slot ~= 1 then
        return ''
    end
    if (s.state == 'queued' or s.held == 'rate') and may_lose_slot(run) then
        return s.held == 'paused' and 'resting:' or 'early:'
    elseif s.state ~= 'queued' then
        return 'begun:'
    elseif s.held == 'paused' then
        return 'stopped:'
    end
    return s.held == 'group' and 'held:' or 'again:'
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
    run.set, run.late, run.counted = group_set(run), s.held == 'rate', (s.held or s.slot == 2) and kept_as(s) or nil
    run.holds = s.slot ~= 1 and 0 or s.state == 'running' and 2 or 1 -- Of slots: none, one, or one with which it runs.
end

-- Brings the sets and counts of the group up to date with its run.
local function note(run, group)
    local s = run.s
    local set = group_set(run)
    local was = run.set or ''
    if set ~= was then
        put(run, group.name, was, set)
        local one, other = COUNTED[was], COUNTED[set]
        if one then
            group[one] = group[one] > 1 and group[one] - 1 or nil
        end
        if other then
            group[other] = (group[other] or 0) + 1
        end
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
    local kept = (s.held or s.slot == 2) and kept_as(s) or nil
    if kept ~= run.counted then
        if run.counted then
            count(run.fact.lane, run.counted, -1)
        end
        if kept then
            count(run.fact.lane, kept, 1)
        end
        run.counted = kept
    end
    local holds, held = s.slot ~= 1 and 0 or s.state == 'running' and 2 or 1, run.holds or 0
    if holds ~= held then
        run.holds = holds
        if holds == 0 or held == 0 then
            group.slots = group.slots + (holds == 0 and -1 or 1)
        end
        if holds == 2 or held == 2 then
            group.running = group.running + (holds == 2 and 1 or -1)
        end
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

-- The first of one of the group's sets, or the last.
local function first_in(set, group, last)
    local key = P .. set .. group.name
    place(group.name)
    flush_set(key)
    return find(member_id(call(last and 'ZREVRANGE' or 'ZRANGE', key, 0, 0)[1]))
end

-- The first one in the line of a group.
local function first_in_line(group)
    local front = fronts[group.name]
    if not front or not front[front.at] then
        local key = P .. 'line:' .. group.name
        if moved[group.name] and moved[group.name].in_line then
            place(group.name)
        end
        flush_set(key)
        front = call('ZRANGE', key, 0, math.max(0, math.min(group.most, FRONT) - 1))
        for i = 1, #front do
            front[i] = member_id(front[i])
        end
        front.at = 1
        fronts[group.name] = front
    end
    return find(front[front.at], args.slots) -- Most likely it is claimed by the exchange that has made room for it.
end

local function comes_first(one, other)
    local priority, member = in_group(one)
    local theirs, their_member = in_group(other)
    if priority ~= theirs then
        return priority < theirs
    end
    return before(member, their_member)
end

-- What a step does to the first of one of the group's sets, or to the last.

local function send_back(group, set)
    to_line(first_in(set, group, true), group)
end

local function hold_first(group, set, held)
    local run = first_in(set, group)
    change(run).held = held
    regroup(run, group)
end

local function hold_last(group, set)
    local run = first_in(set, group, true)
    change(run).held = 'group'
    regroup(run, group)
end

local function admit(group)
    local run = first_in_line(group)
    local s = change(run)
    s.slot, s.held = 1, nil
    s.place = s.place or next_turn()
    regroup(run, group)
end

-- What is to be done next for a group, run by run, so that it goes by its limit: one of these, with the set; nil when it
-- does. What has not begun goes back into the line: what is too much, the last ones first, or all of it when the group is
-- paused. What has begun keeps its slot; of those that are queued no more are let through, in order, than the limit
-- leaves beside those that are running. Slots that are free go to the first ones in the line.
local function next_step(group)
    local over = group.slots > group.most
    if group.early and (over or (group.paused and group.sweeps)) then
        return send_back, 'early:'
    elseif group.resting and group.paused and group.sweeps then
        return send_back, 'resting:'
    elseif group.resting and not group.paused then
        return hold_first, 'resting:'
    elseif group.paused then
        local set = (group.again and 'again:') or (group.held and 'held:')
        return set and hold_first, set, 'paused'
    elseif group.stopped then
        return hold_first, 'stopped:', over and 'group' or nil
    end
    if group.again or group.held then
        local room = group.most - group.running - (group.again or 0)
        if room < 0 and group.again then
            return hold_last, 'again:'
        elseif group.held and room > 0 then
            return hold_first, 'held:'
        elseif group.held and group.again then
            return comes_first(first_in('held:', group), first_in('again:', group, true)) and hold_last, 'again:'
        end
    end
    if group.lined and group.slots < group.most then
        return admit
    end
end

local unsettled = {} -- groups that go by their limits when their chores are done
resets[#resets + 1] = function()
    if next(unsettled) then
        unsettled = {}
    end
end

-- Returns whether the group goes by its limit now.
local function settle_part(group)
    local step, set, held = next_step(group)
    while step and steps > 0 do
        step(group, set, held)
        steps = steps - 1
        step, set, held = next_step(group)
    end
    if step then
        return false
    end
    group.sweeps = nil
    return true
end

-- Something about a group has changed: what its runs do, or (`sweeps`) its limit, or a pause: then what has not begun
-- goes back into the line, where that holds it; what comes back while the group is paused keeps its slot, unless there
-- are more of these than the limit.
function settle_group(group, sweeps)
    group.changed, group.sweeps = true, sweeps or group.sweeps
    if not unsettled[group.name] and not settle_part(group) then
        unsettled[group.name] = true
        begin_chore('settle', group.name, {})
    end
end

function chore_kinds.settle(name)
    local group = shared(groups, 'group', name)
    return not group or settle_part(group)
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
            settle_group(group, group.paused)
        end
        return
    end
    if not group.paused and group.slots < group.most and not group.lined then
        s.slot, s.place = 1, s.place or own_place(run)
        regroup(run, group)
        return
    end
    s.slot, s.held = 2, 'group'
    regroup(run, group)
    if not group.paused and group.early then
        local last = first_in('early:', group, true)
        if comes_first(run, last) then
            to_line(last, group)
            settle_group(group)
        end
    end
end

-- A run is not queued or running any more.
function leave_group(run, group)
    local s = run.s
    if FINAL[s.state] or (s.held ~= 'rate' and (run.fact.no_keep or s.slot == 2 or not s.begun)) then
        s.slot = 0
        s.held = nil
    end
    note(run, group)
    follow(run)
    settle_group(group)
end
end
