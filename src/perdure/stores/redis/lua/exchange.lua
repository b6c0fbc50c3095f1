-- library: exchanges
-- flags: allow-oom
-- One call per wake of a worker: saves, progress, settles, fires, due timers and deadlines, claims, and the reply.

local DUE_SCHEDULES = 10 -- The most schedules that one reply tells of as due.

local worker = args.worker
local most_sessions = call('HGET', K.takes, worker)
local known = most_sessions ~= false
-- In a cluster it may own no more sessions here than it has, and so many.
if args.rooms and known then
    most_sessions = math.min(tonumber(most_sessions), call('SCARD', P .. 'sessions:' .. worker) + args.rooms)
end
claimer = { worker = worker, serial = args.serial, next = args.first or 0, sessions = tonumber(most_sessions or 0) }

-- Most exchanges find nothing of all these, and one look tells so. Of them only timers, deadlines, and runs that are to be
-- stopped can come to be in this one.
local plain = call('EXISTS', K.timer, K.due, K.slots, K.budget, K.rated, K.chores, key_of(worker, 'stop:')) == 0
if plain then
    first_scores[K.timer], first_scores[K.due] = false, false -- Until something is added.
end

-- Sessions that have no run any more from now on are seen to by the next exchange.
local idle = claimer.sessions > 0 and first_score(K.idle)

-- WHO SAYS WHAT. Whether each token owns its run is looked at before anything changes.

look_at(args.saves, WIDTH)
look_at_each(args.told)
look_at(args.settles, WIDTH)
look_at_each(args.watches)
look_at(args.owned, 3)
look_at(args.checks, 3) -- In a cluster: of which something was to be said that is not said here.

-- In a cluster: nothing is done while one of the runs that it makes is to be made elsewhere.
if spread then
    local elsewhere = {}
    local function look_at_place(start)
        local answer = places.misplaced(start)
        if answer then
            elsewhere[#elsewhere + 1] = { start.id, answer.place }
        end
    end
    local saves = args.saves
    for at = 1, saves and #saves or 0, WIDTH do
        if saves[at] and saves[at + 7] then
            look_at_place(saves[at + 7])
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

-- Of many runs that it owns, those that were claimed by the exchange that is repeated are looked for before.
if known and args.repeated and not args.mine and call('SCARD', P .. 'owned:' .. worker) > LOOKED_AT then
    return pack({ now = now, crowded = true })
end

local existing = save_all(args.saves)

for _, told in ipairs(args.told or NOTHING) do
    if told.run then
        keep(told.run, 'st', told.status)
        tell('status')
    end
end

local settled = settle_all(args.settles)

-- WHAT IT HAS BY OUR WORD AND NOT BY ITS OWN, where it says all that it has: a server that took over from another one had
-- not heard of the end of that. Nobody else would care for it as long as the worker lives. Where it is much, that is looked
-- at from outside (see owned.py).

local unchecked = false
if known and args.owned and not args.repeated and call('SCARD', P .. 'owned:' .. worker) > LOOKED_AT then
    unchecked = true
elseif known and args.owned and not args.repeated then
    local has = {}
    for at = 1, #args.owned, 3 do
        local run = args.owned[at]
        if run and run.s.low == args.owned[at + 2] then
            has[run.id] = true
        end
    end
    local on_their_way = {}
    for _, id in ipairs(call('HVALS', P .. 'pushed:' .. worker)) do
        on_their_way[id] = true
    end
    flush_set(P .. 'owned:' .. worker)
    for _, id in ipairs(call('SMEMBERS', P .. 'owned:' .. worker)) do
        local run = find(id)
        if not has[id] and not on_their_way[id] then
            change(run).cut = nil
            move(run, 'queued')
            made_ready = true
        end
    end
end

-- WHAT IS DUE: a bounded number, as of chores.

local more, more_late = false, false
if known then
    if args.fires then
        fire(args.fires)
    end
    local timer = first_score(K.timer)
    if timer and timer <= now then
        local most = math.max(steps, 1)
        local ids = call('ZRANGEBYSCORE', K.timer, '-inf', now, 'LIMIT', 0, most)
        for _, id in ipairs(ids) do
            local run = find(id)
            if run.s.wake and run.s.wake <= now then
                move(run, 'queued')
            end
        end
        steps = steps - #ids
        more = #ids == most
    end
    local deadline = first_score(K.due)
    if deadline and deadline <= now then
        local late, most = {}, math.max(steps, 1)
        for i, id in ipairs(call('ZRANGEBYSCORE', K.due, '-inf', now, 'LIMIT', 0, most)) do
            late[i] = find(id)
        end
        steps = steps - #late
        expire(late)
        more_late = #late == most
        more = more or more_late
    end
    if not plain and call('EXISTS', K.chores) == 1 then
        more = go_on_with_chores() or more
    end
    if idle and idle <= now then
        rest()
        local most = math.max(steps, 1)
        local names = call('ZRANGEBYSCORE', K.idle, 1, now, 'LIMIT', 0, most)
        for _, name in ipairs(names) do
            hand_over(shared(sessions, 'session', name), nil)
            made_ready = true
        end
        steps = steps - #names
        more = more or #names == most
    end
    if args.draining and claimer.sessions > 0 then
        local set = 'sessions:' .. worker
        local names, others = part_of_set(set)
        for _, name in ipairs(names) do
            local session = shared(sessions, 'session', name)
            if session and not session.running then
                if steps <= 0 then
                    call('HDEL', K.scan, set) -- The next look begins anew: it finds the others of these.
                    others = true
                    break
                end
                steps = steps - 1 - session.seated
                hand_over(session, nil)
                made_ready = true
            end
        end
        more = more or others
    end
end

-- CLAIMS

local opens, room, parked
local pushes = {}
if known then
    flush_sets()
    local free = args.slots or 0
    if args.listens and not args.busy then
        pushes = unknown_pushes(worker, args.got or NOTHING)
        free = free - #pushes
    end
    local slots = math.min(free, 64)
    if args.repeated then
        -- What the first one claimed stays claimed; only the slots that it left empty are filled.
        for _, id in ipairs(args.mine or call('SMEMBERS', P .. 'owned:' .. worker)) do
            local run = find(id)
            local low = run and run.s.worker == worker and run.s.low
            if low and math.floor(low / 256) == args.serial and low % 256 < FIRST_PUSH then
                run.number = low % 256
                claimed[#claimed + 1] = run
                claimer.next = math.max(claimer.next, low % 256 + 1)
                slots = slots - 1
            end
        end
    end
    slots = more_late and 0 or math.max(0, slots)
    local names, only_some = ready_names(worker)
    local strict = not plain and call('EXISTS', K.budget, K.rated) > 0
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
    more_ready = more_ready or only_some
    more = more or more_ready
    if args.listens then
        -- What is repeated has parked it before: the tokens of pushes would come twice.
        local slots_left = (args.draining or more_ready or args.repeated) and 0 or free - #claimed
        park_worker(worker, args.serial, slots_left, not args.busy)
        parked = slots_left > 0
    end
    if #claimed > 0 or settled > 0 or made_ready then
        tell('status')
    end
    if made_ready or (strict and settled > 0) then
        flush_set(K.hot)
        if call('EXISTS', K.hot) == 1 then
            tell('work')
        end
    end
end

-- THE REPLY

local reply = {
    now = now, refused = refused[1] and refused, existed = existing[1] and existing,
    claims = nil, kinds = nil, pushes = nil, more = nil, next_at = nil, -- There is room for what comes.
}
if not known then
    reply.gone = true
else
    if args.repeated then
        table.sort(claimed, function(one, other)
            return one.number < other.number
        end)
    end
    reply.parked = parked or nil
    local claims, stops = {}, not plain
    for i, run in ipairs(claimed) do
        claims[i] = show(run)
        stops = stops or run.s.why -- Asked for when another one had it.
    end
    reply.claims, reply.kinds, reply.pushes = claims[1] and claims, kinds[1] and kinds, pushes[1] and pushes
    local stopped, others = NOTHING, false
    if stops then
        stopped, others = part_of_set('stop:' .. worker)
    end
    for _, id in ipairs(stopped) do
        local run = find(id)
        reply.cancelled = reply.cancelled or {}
        table.insert(reply.cancelled, { run.s.worker, run.s.low, reason(run.s) })
    end
    local due
    if not plain then
        due, reply.due = due_schedules(args.skips or {}, DUE_SCHEDULES)
    end
    local next_at = math.min(
        first_score(K.timer) or math.huge, first_score(K.due) or math.huge,
        due or math.huge, opens or math.huge, room or math.huge
    )
    reply.next_at = next_at < math.huge and next_at or nil
    reply.more, reply.unchecked = more or others or chores_left() ~= nil or nil, unchecked or nil
    if spread then
        reply.mail = {}
        for i, letter in ipairs(call('SRANDMEMBER', P .. 'mail', 100)) do
            reply.mail[i] = unpacked(letter)
        end
        reply.bytes = claimed_bytes
        reply.sessions = call('SCARD', P .. 'sessions:' .. worker)
        for _, name in ipairs((ready_names(worker))) do
            flush_set(P .. 'ready:' .. name)
            reply.wants = reply.wants or (string.sub(name, -1) == '@' and call('EXISTS', P .. 'ready:' .. name) == 1)
        end
    end
end
if spread then
    local saves = args.saves
    for at = 1, saves and #saves or 0, WIDTH do
        if saves[at + 7] then
            places.give_up(saves[at + 7])
        end
    end
    for _, each in ipairs(args.fires or {}) do
        for _, start in ipairs(each.starts) do
            places.give_up(start)
        end
    end
end
local bytes = 0
for _, watch in ipairs(args.watches or NOTHING) do
    local run = watch.run
    if run and run.s.worker == watch.worker and run.s.low == watch.low then
        local seen = seen_of(run, watch.wait)
        if seen then
            seen.id, seen.worker, seen.low, seen.key = watch.id, watch.worker, watch.low, watch.wait.key
            bytes = bytes + #((seen.ended or seen.signal or NOTHING).body or '')
            if reply.seen and bytes > BOUNDS.page_bytes then
                reply.more = true
                break
            end
            reply.seen = reply.seen or {}
            table.insert(reply.seen, seen)
        end
    end
end
if new_timer and new_timer == first_score(K.timer) then
    tell('work') -- Others may have to wake earlier than they meant to.
end
flush()
return pack(reply)
