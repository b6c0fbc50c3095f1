-- What keeps a run from being claimed, decided when something changes: only what may be claimed lies in a ready set.
--
-- GROUPS. A run takes part in its group while it is queued or running, and, as declared, while it waits or backs off:
-- then it has a slot (`slot` 1) or stands in the line for one (2); otherwise it takes no part (0). A group counts its
-- slots, how many of them run, and its line. :line holds those in the line, :early the queued ones with a slot that may
-- lose it (they have not begun, or keep no slot), :begun all others with a slot; each by priority, then number.
-- :late holds those that the group's rate has put off (state scheduled, held for `rate`), by priority, then place.
--
-- SESSIONS. At most 64 runs of a session are ready (`seat` 1), in :seats; the others are on the :bench (2). 3 runs, and 0
-- is held otherwise. So ownership changes at a cost that does not depend on how many runs a session has.

local MOST_SEATS = 64

local groups, sessions
local made_hot -- the ready sets that are known to be in :hot
local enter, leave_ready -- of the ready set, see below

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
    for name, record in pairs(kept) do
        if record and record.changed then
            record.changed, record.name = nil, nil
            if unused(record) then
                call('HDEL', P .. key, name)
                kept[name] = nil
            else
                call('HSET', P .. key, name, pack(record))
                record.name = name
            end
        end
    end
end

resets[#resets + 1] = function()
    groups, sessions, made_hot = {}, {}, {}
end
flushers[#flushers + 1] = function()
    flush_shared(groups, 'group', function(group)
        return group.runs <= 0
    end)
    flush_shared(sessions, 'session', function(session)
        return session.runs <= 0 and not session.owner
    end)
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
        call('SADD', K.hot, name)
    end
    made_ready = true
end

-- Nobody need look at a ready set any more, until something enters it again.
local function cool(name)
    call('SREM', K.hot, name)
    made_hot[name] = nil
end

function leave_ready(run)
    zrem(P .. 'ready:' .. ready_name(run), run.s.place .. run.id)
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

-- SESSIONS

local function new_session()
    return { runs = 0, seated = 0, benched = 0, other = 0 }
end

local function session_of(run)
    local name = run.fact.session_name
    return name and shared(sessions, 'session', name, new_session) or nil
end

local function rank(run)
    return run.fact.priority, run.s.place .. run.id
end

-- A run of a session leaves the seat that it has.
local function leave_seat(run, session)
    local s = run.s
    if s.seat == 1 then
        leave_ready(run)
        zrem(P .. 'seats:' .. session.name, s.place .. run.id)
        session.seated = session.seated - 1
    elseif s.seat == 2 then
        zrem(P .. 'bench:' .. session.name, s.place .. run.id)
        count(run.fact.lane, 'session', -1)
        session.benched = session.benched - 1
    elseif s.seat then
        session.other = session.other - 1
    end
    s.seat, session.changed = nil, true
end

local function take_seat(run, session, seat)
    local s = run.s
    s.seat, session.changed = seat, true
    if seat == 1 then
        s.owner = session.owner or -1
        enter(run)
        zadd(P .. 'seats:' .. session.name, rank(run))
        session.seated = session.seated + 1
    elseif seat == 2 then
        zadd(P .. 'bench:' .. session.name, rank(run))
        count(run.fact.lane, 'session', 1)
        session.benched = session.benched + 1
    else
        session.other = session.other + 1
    end
end

local function id_of(member)
    return string.sub(member, 17)
end

-- Who sits and who stands: a newcomer that has no room sends the last one to the bench (maybe itself); a seat that
-- becomes free goes to the first one there. Without any run that is queued or runs, the owner keeps it for a while.
local function settle_seats(session)
    if session.seated > MOST_SEATS then
        flush_set(P .. 'seats:' .. session.name)
        local last = find(id_of(call('ZREVRANGE', P .. 'seats:' .. session.name, 0, 0)[1]))
        leave_seat(last, session)
        change(last).held = 'session'
        take_seat(last, session, 2)
    elseif session.seated < MOST_SEATS and session.benched > 0 then
        flush_set(P .. 'bench:' .. session.name)
        local first = find(id_of(call('ZRANGE', P .. 'bench:' .. session.name, 0, 0)[1]))
        leave_seat(first, session)
        change(first).held = nil
        take_seat(first, session, 1)
    end
    local idle = session.owner and session.seated + session.benched + session.other == 0
    if idle and not session.idle then
        session.idle = 0 -- Until `rest` sets the time.
        zadd(K.idle, 0, session.name)
    elseif not idle and session.idle then
        zrem(K.idle, session.name)
        session.idle = nil
    end
    session.changed = true
end

-- Gives a session an owner, or none.
local function hand_over(session, owner)
    if session.owner == owner then
        return
    end
    local key = P .. 'seats:' .. session.name
    flush_set(key)
    local seated = {}
    for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
        local run = find(id_of(member))
        leave_ready(run)
        seated[#seated + 1] = run
    end
    if session.owner then
        call('SREM', P .. 'sessions:' .. session.owner, session.name)
    end
    if owner then
        call('SADD', P .. 'sessions:' .. owner, session.name)
    end
    session.owner, session.changed = owner, true
    for _, run in ipairs(seated) do
        change(run).owner = owner or -1
        enter(run)
    end
    if session.idle then
        zrem(K.idle, session.name)
        session.idle = nil
    end
end

-- Sets how long owners keep the sessions of which no run is there any more.
local function rest()
    flush_set(K.idle)
    for _, name in ipairs(call('ZRANGEBYSCORE', K.idle, 0, 0)) do
        local session = shared(sessions, 'session', name)
        local worker = session and session.owner and call('HGET', K.workers, session.owner)
        if worker then
            session.idle, session.changed = now + unpacked(worker).session_idle, true
            call('ZADD', K.idle, session.idle, name)
        else
            call('ZREM', K.idle, name)
        end
    end
end

-- The run comes into the ready set, unless something holds it, or leaves it: whatever has changed about it.
local function follow(run)
    local s = run.s
    local session = session_of(run)
    if not session then
        local ready = s.state == 'queued' and not s.held and s.slot ~= 0
        if ready and not s.ready then
            enter(run)
        elseif s.ready and not ready then
            leave_ready(run)
        end
        s.ready = ready or nil
        return
    end
    local seat
    if s.state == 'running' then
        seat = 3
    elseif s.state ~= 'queued' then
        seat = nil
        if s.held == 'session' then
            s.held = nil -- It looks for a seat anew when it comes back.
        end
    elseif s.slot == 0 or s.slot == 2 then
        seat = 0
    elseif not s.held then
        seat = 1
    elseif s.held == 'session' then
        seat = 2
    else
        seat = 0
    end
    if seat ~= s.seat then
        leave_seat(run, session)
        if seat then
            take_seat(run, session, seat)
        end
    end
    if seat == 3 and not session.owner then
        hand_over(session, s.worker)
    end
    settle_seats(session)
end

-- GROUPS

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

local function group_of(run)
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

-- Brings the sets and counts of the group up to date with its run.
local function note(run, group)
    local s = run.s
    local set = group_set(run)
    local was = s.gset or ''
    if set ~= was then
        if was ~= '' then
            zrem(P .. was .. group.name, order(s.seq) .. run.id)
        end
        if set ~= '' then
            zadd(P .. set .. group.name, in_group(run))
        end
        group.lined = group.lined + (set == 'line:' and 1 or 0) - (was == 'line:' and 1 or 0)
        s.gset = set ~= '' and set or nil
    end
    local late = s.held == 'rate'
    if late ~= (s.late or false) then
        if late then
            zadd(P .. 'late:' .. group.name, rank(run))
        else
            zrem(P .. 'late:' .. group.name, s.place .. run.id)
        end
        s.late = late or nil
    end
    local kept = kept_as(s)
    if kept ~= s.counted then
        if s.counted then
            count(run.fact.lane, s.counted, -1)
        end
        if kept then
            count(run.fact.lane, kept, 1)
        end
        s.counted = kept
    end
    local has, had = s.slot == 1, s.has_slot or false
    if has ~= had then
        group.slots = group.slots + (has and 1 or -1)
        s.has_slot = has or nil
    end
    local runs_now, ran = has and s.state == 'running', s.runs_now or false
    if runs_now ~= ran then
        group.running = group.running + (runs_now and 1 or -1)
        s.runs_now = runs_now or nil
    end
    group.changed = true
end

-- Something about a run of a group was changed that this module decides on.
local function regroup(run, group)
    changed[run.id] = run
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
        return one.member < other.member
    end)
    return found
end

-- The limit of a group was changed, it was paused or resumed, or it has more slots out than its limit and a run of it
-- comes or goes. What has not begun goes back into the line: what is too much, the last ones first, or all of it. What
-- has begun keeps its slot; of those that are queued no more are let through, in order, than the limit leaves beside
-- those that are running.
local function settle_group(group)
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
local function join_group(run, group)
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
        if theirs > priority or (theirs == priority and last[1] > member) then
            to_line(find(member_id(last[1])), group)
            admit(group)
        end
    end
end

-- A run is not queued or running any more.
local function leave_group(run, group, was)
    local s = run.s
    local counted_before = s.has_slot and (was == 'queued' or was == 'running')
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

-- STATES

-- Takes a run to another state, with all that lies on the way: the one place where a state changes.
-- `wake` is when its timer is due.
local function move(run, state, wake)
    local s = change(run)
    local was = s.state
    if was == 'running' and state ~= 'running' then
        srem(P .. 'owned:' .. s.worker, run.id)
        if s.why then
            call('SREM', P .. 'stop:' .. s.worker, run.id)
        end
        s.worker, s.token = nil, nil
    end
    if s.wake and s.wake ~= wake then
        zrem(K.timer, run.id)
    end
    if state == 'running' then
        sadd(P .. 'owned:' .. s.worker, run.id)
        if s.why then
            call('SADD', P .. 'stop:' .. s.worker, run.id)
        end
    end
    if wake and s.wake ~= wake then
        zadd(K.timer, wake, run.id)
        new_timer = new_timer and math.min(new_timer, wake) or wake
    end
    s.wake, s.state = wake, state
    if was ~= state then
        if was then
            count(run.fact.lane, was, -1)
        end
        count(run.fact.lane, state, 1)
    end
    local group = group_of(run)
    if not group then
        if state == 'queued' and not s.place then
            s.place = own_place(run)
        end
        follow(run)
    elseif state == 'queued' then
        if s.held == 'rate' then
            s.held = nil
        end
        join_group(run, group)
    elseif state == 'running' then
        regroup(run, group)
    else
        leave_group(run, group, was)
    end
end
