-- Sessions: at most 64 runs of a session are ready (`seat` 1), in :seats; the others are on the :bench (2). 3 runs, and 0
-- is held otherwise. So ownership changes at a cost that does not depend on how many runs a session has.

local session_of, rank, id_of, hand_over, rest, follow

do
local MOST_SEATS = 64

local function new_session()
    return { runs = 0, seated = 0, benched = 0, other = 0 }
end

function session_of(run)
    local name = run.fact.session_name
    return name and shared(sessions, 'session', name, new_session) or nil
end

function rank(run)
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
        if s.seat == 3 then
            session.running = session.running > 1 and session.running - 1 or nil
        end
    end
    s.seat = nil
    session.changed = true
end

local function take_seat(run, session, seat)
    local s = mark(run)
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
        if seat == 3 then
            session.running = (session.running or 0) + 1
        end
    end
end

function id_of(member)
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
function hand_over(session, owner)
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
        mark(run).owner = owner or -1
        enter(run)
    end
    if session.idle then
        zrem(K.idle, session.name)
        session.idle = nil
    end
end

-- Sets how long owners keep the sessions of which no run is there any more.
function rest()
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
function follow(run)
    local s = run.s
    local session = run.fact.session_name and session_of(run)
    if not session then
        local ready = is_ready(s)
        if ready and not run.ready then
            enter(run)
        elseif run.ready and not ready then
            leave_ready(run)
        end
        run.ready = ready
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
end
