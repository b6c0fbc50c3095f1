-- uses: core holding seating grouping moving starting keeping ending claiming showing pushing scheduling
-- flags: allow-oom
-- One call per wake of a worker: saves, progress, settles, fires, due timers and deadlines, claims, and the reply.

local DUE_LIMIT = 200 -- The most timers, and the most deadlines, that one exchange takes up.
local DUE_SCHEDULES = 10 -- The most schedules that one reply tells of as due.

local worker = args.worker
local most_sessions = call('HGET', K.takes, worker)
local known = most_sessions ~= false
-- In a cluster it may own no more sessions here than it has, and so many.
if args.rooms and known then
    most_sessions = math.min(tonumber(most_sessions), call('SCARD', P .. 'sessions:' .. worker) + args.rooms)
end
claimer = { worker = worker, serial = args.serial, next = args.first or 0, sessions = tonumber(most_sessions or 0) }

-- Sessions that have no run any more from now on are seen to by the next exchange.
local idle = claimer.sessions > 0 and first_score(K.idle)

-- WHO SAYS WHAT. Whether each token owns its run is looked at before anything changes.

local standing, refused = {}, {}
local settling = {}
for _, settle in ipairs(args.settles or {}) do
    settling[settle.token] = true
end

local function look(said)
    for _, each in ipairs(said or {}) do
        local token = each.token
        if not standing[token] then
            local run = find(each.id)
            if run and run.s.token == token then
                standing[token] = 'owned'
            elseif run and run.s.settled == token then
                standing[token] = 'settled'
                if not settling[token] then
                    refused[#refused + 1] = token
                end
            else
                standing[token] = 'lost'
                refused[#refused + 1] = token
            end
        end
    end
end

look(args.saves)
look(args.told)
look(args.settles)
look(args.watches)
look(args.owned)

-- In a cluster: nothing is done while one of the runs that it makes is to be made elsewhere.
if spread then
    local elsewhere = {}
    local function look_at_place(start)
        local answer = places.misplaced(start)
        if answer then
            elsewhere[#elsewhere + 1] = { start.id, answer.place }
        end
    end
    for _, save in ipairs(args.saves or {}) do
        if save.starts and standing[save.token] == 'owned' then
            look_at_place(save.starts)
        end
    end
    for _, each in ipairs(args.fires or {}) do
        for _, start in ipairs(each.starts) do
            look_at_place(start)
        end
    end
    if #elsewhere > 0 then
        return pack({ now = now, misplaced = elsewhere })
    end
end

-- SAVES

local existing = {}
for _, save in ipairs(args.saves or {}) do
    if standing[save.token] == 'owned' then
        local run, keeps = find(save.id), true
        if save.starts then
            local answer = begin(save.starts)
            if answer ~= 0 and answer.existed then
                existing[#existing + 1] = {
                    token = save.token, key = save.checkpoint.key, id = answer.id, same = answer.same,
                }
                keeps = answer.same
                if answer.id ~= save.starts.id then
                    save.checkpoint.body = string.gsub(cjson.encode(answer.id), '\\/', '/')
                end
            end
        end
        if keeps then
            keep_checkpoint(run, save.checkpoint)
            if save.consumes then
                consume(run, save.consumes, save.checkpoint.key)
            end
        end
    end
end

-- PROGRESS

for _, told in ipairs(args.told or {}) do
    if standing[told.token] == 'owned' then
        keep(find(told.id), 'st', told.status)
        tell('status')
    end
end

-- SETTLES, in the order of the runs, so that it is known who of a group gets a slot first. Those that end runs finish
-- these in the order in which they were said.

local ENDS = { succeeded = true, failed = true, cancelled = true }

-- Whether a wait of a parked run is true already.
local function is_true(run, wait)
    if wait.at and wait.at <= now then
        return true
    elseif wait.away then
        return wait.over or (run.s.heard and run.s.heard[wait.target]) or false
    elseif wait.what == 'signal' then
        return first_signal(run, wait.target) ~= nil
    elseif wait.what == 'run' then
        local other = find(wait.target)
        return not other or FINAL[other.s.state] or false
    end
    return false
end

local function park(run, waits)
    local s = run.s
    local first
    for _, wait in ipairs(waits) do
        if wait.at then
            first = first and math.min(first, wait.at) or wait.at
        end
        local other = wait.what == 'run' and not wait.away and find(wait.target)
        if other and not FINAL[other.s.state] then
            call('SADD', P .. 'parked:' .. other.id, run.id)
            change(other).awaited = true
        end
    end
    s.waits = waits
    keep(run, 'o', false)
    move(run, 'waiting', first)
end

local function continue(run, input)
    local s = run.s
    drop_checkpoints(run)
    drop_consumed(run)
    if input then
        keep(run, 'first', first_input(run))
        keep(run, 'i', input)
        s.size = #input
    end
    s.waits, s.attempt, s.crashes = nil, nil, nil
    keep(run, 'o', false)
    move(run, 'queued')
end

local settled, ends = {}, 0
for _, settle in ipairs(args.settles or {}) do
    if standing[settle.token] == 'owned' and settling[settle.token] then
        settling[settle.token] = nil
        settled[#settled + 1] = settle
        settle.seq = find(settle.id).s.seq
        if ENDS[settle.to] then
            ends = ends + 1
            settle.finish = ends
        end
    end
end
local finished = ends > 0 and in_time.take('finish', ends) or 0
table.sort(settled, function(one, other)
    return one.seq < other.seq
end)

local of_sessions, parked = false, {}
for _, settle in ipairs(settled) do
    local run = find(settle.id)
    local s, to = change(run), settle.to
    of_sessions = of_sessions or run.fact.session ~= nil
    s.settled, s.cut = settle.token, nil
    if s.why and not ENDS[to] then
        to = 'release'
    end
    if ENDS[to] then
        finish(run, to, settle.body, to == 'failed' and settle.cause or nil, finished + settle.finish)
    elseif to == 'park' then
        park(run, settle.waits or {})
        parked[#parked + 1] = run
    elseif to == 'retry' then
        s.waits = nil
        drop_errors(run)
        give_back(run)
        s.attempt = (s.attempt or 1) + 1
        if settle.body then
            keep(run, 'o', settle.body)
        end
        if (settle.delay or 0) > 0 then
            move(run, 'scheduled', now + settle.delay)
        else
            move(run, 'queued')
        end
    elseif to == 'continue' then
        continue(run, settle.body)
    else
        move(run, 'queued')
    end
end
for _, run in ipairs(parked) do
    for _, wait in ipairs(run.s.waits) do
        if run.s.state == 'waiting' and is_true(run, wait) then
            wake(run)
        end
    end
end
for _, settle in ipairs(settled) do
    find(settle.id).s.heard = nil
end
if of_sessions then
    rest()
end

-- WHAT IT HAS BY OUR WORD AND NOT BY ITS OWN, where it says all that it has: a server that took over from another one had
-- not heard of the end of that. Nobody else would care for it as long as the worker lives.

if known and args.owned and not args.repeated then
    local has = {}
    for _, each in ipairs(args.owned) do
        has[each.token] = true
    end
    local on_their_way = {}
    for _, id in ipairs(call('HVALS', P .. 'pushed:' .. worker)) do
        on_their_way[id] = true
    end
    flush_set(P .. 'owned:' .. worker)
    for _, id in ipairs(call('SMEMBERS', P .. 'owned:' .. worker)) do
        local run = find(id)
        if not has[run.s.token] and not on_their_way[id] then
            change(run).cut = nil
            move(run, 'queued')
            made_ready = true
        end
    end
end

-- WHAT IS DUE: a bounded number.

local more, more_late = false, false
if known then
    if args.fires then
        fire(args.fires)
    end
    local timer = first_score(K.timer)
    if timer and timer <= now then
        local ids = call('ZRANGEBYSCORE', K.timer, '-inf', now, 'LIMIT', 0, DUE_LIMIT)
        for _, id in ipairs(ids) do
            local run = find(id)
            if run.s.wake and run.s.wake <= now then
                if run.s.state == 'waiting' then
                    stop_waiting(run)
                end
                move(run, 'queued')
            end
        end
        more = #ids == DUE_LIMIT
    end
    local deadline = first_score(K.due)
    if deadline and deadline <= now then
        local late = {}
        for i, id in ipairs(call('ZRANGEBYSCORE', K.due, '-inf', now, 'LIMIT', 0, DUE_LIMIT)) do
            late[i] = find(id)
        end
        expire(late)
        more_late = #late == DUE_LIMIT
        more = more or more_late
    end
    if idle and idle <= now then
        rest()
        for _, name in ipairs(call('ZRANGEBYSCORE', K.idle, 1, now, 'LIMIT', 0, DUE_LIMIT)) do
            hand_over(shared(sessions, 'session', name), nil)
            made_ready = true
        end
    end
    if args.draining and claimer.sessions > 0 then
        for _, name in ipairs(call('SMEMBERS', P .. 'sessions:' .. worker)) do
            local session, running = shared(sessions, 'session', name), false
            flush_set(P .. 'owned:' .. worker)
            for _, id in ipairs(call('SMEMBERS', P .. 'owned:' .. worker)) do
                local run = find(id)
                running = running or (run and session_of(run) == session) or false
            end
            if session and not running then
                hand_over(session, nil)
                made_ready = true
            end
        end
    end
end

-- CLAIMS

local opens, room
local pushes = {}
if known then
    flush_sets()
    local free = args.slots or 0
    if args.listens then
        pushes = unknown_pushes(worker, args.got or {})
        free = free - #pushes
    end
    local slots = math.min(free, 64)
    if args.repeated then
        -- What the first one claimed stays claimed; only the slots that it left empty are filled.
        for _, id in ipairs(call('SMEMBERS', P .. 'owned:' .. worker)) do
            local run = find(id)
            local low = claim_low(run)
            if math.floor(low / 256) == args.serial and low % 256 < FIRST_PUSH then
                claimed[#claimed + 1] = { run = run, number = low % 256 }
                claimer.next = math.max(claimer.next, low % 256 + 1)
                slots = slots - 1
            end
        end
    end
    slots = more_late and 0 or math.max(0, slots)
    local names = ready_names(worker)
    local strict = call('EXISTS', K.budget, K.rated) > 0
    for _, name in ipairs(names) do
        strict = strict or string.sub(name, -1) == '@'
    end
    local more_ready
    if strict then
        more_ready, opens = claim_within_budgets(names, slots, args.after or '')
        room = room_at(names)
    else
        more_ready = claim_by_turns(names, slots, args.after or '')
    end
    more = more or more_ready
    if args.listens then
        park_worker(worker, args.serial, (args.draining or more_ready) and 0 or free - #claimed)
    end
    if #claimed > 0 or #settled > 0 or made_ready then
        tell('status')
    end
    if (made_ready or (strict and #settled > 0)) and call('EXISTS', K.hot) == 1 then
        tell('work')
    end
end

-- THE REPLY

local reply = { now = now, refused = refused, existed = existing }
if not known then
    reply.gone = true
else
    table.sort(claimed, function(one, other)
        return one.number < other.number
    end)
    reply.claims = {}
    for i, each in ipairs(claimed) do
        reply.claims[i] = show(each)
    end
    reply.pushes = pushes
    for _, id in ipairs(call('SMEMBERS', P .. 'stop:' .. worker)) do
        local run = find(id)
        reply.cancelled = reply.cancelled or {}
        table.insert(reply.cancelled, { run.s.token, reason(run.s) })
    end
    local due
    due, reply.due = due_schedules(args.skips or {}, DUE_SCHEDULES)
    for _, time in pairs({ first_score(K.timer) or nil, first_score(K.due) or nil, due or nil, opens, room }) do
        reply.next_at = reply.next_at and math.min(reply.next_at, time) or time
    end
    reply.more = more
    if spread then
        reply.mail = {}
        for i, letter in ipairs(call('SRANDMEMBER', P .. 'mail', 100)) do
            reply.mail[i] = unpacked(letter)
        end
        reply.bytes = claimed_bytes
        reply.sessions = call('SCARD', P .. 'sessions:' .. worker)
        for _, name in ipairs(ready_names(worker)) do
            flush_set(P .. 'ready:' .. name)
            reply.wants = reply.wants or (string.sub(name, -1) == '@' and call('EXISTS', P .. 'ready:' .. name) == 1)
        end
    end
end
if spread then
    for _, save in ipairs(args.saves or {}) do
        if save.starts then
            places.give_up(save.starts)
        end
    end
    for _, each in ipairs(args.fires or {}) do
        for _, start in ipairs(each.starts) do
            places.give_up(start)
        end
    end
end
for _, watch in ipairs(args.watches or {}) do
    if standing[watch.token] == 'owned' then
        local run, wait = find(watch.id), watch.wait
        if run.s.token == watch.token then
            local seen
            if wait.what == 'signal' then
                local signal = first_signal(run, wait.target)
                seen = signal and { signal = signal }
            elseif wait.what == 'run' then
                local other = find(wait.target)
                if not other then
                    seen = { missing = true }
                elseif FINAL[other.s.state] then
                    seen = { ended = ended_of(other) }
                end
            end
            if not seen and wait.at and wait.at <= now then
                seen = {}
            end
            if seen then
                seen.id, seen.token, seen.key = watch.id, watch.token, wait.key
                reply.seen = reply.seen or {}
                table.insert(reply.seen, seen)
            end
        end
    end
end
if new_timer and new_timer == first_score(K.timer) then
    tell('work') -- Others may have to wake earlier than they meant to.
end
flush()
return pack(reply)
