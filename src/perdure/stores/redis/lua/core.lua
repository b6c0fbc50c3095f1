-- What every function begins with: its arguments, the store's time, and the runs that it reads and writes.
--
-- The one key is the prefix of all keys, a hash tag in braces: all keys of one namespace (of one partition in a cluster)
-- lie in one slot. The first argument is the time by which the function goes, or "" for the server's; the second one holds
-- what is asked, packed; a third one says that runs are spread over partitions. The server keeps what is defined here from
-- one call to the next: so all that belongs to a call is made anew by `begin_call`, or by what a module puts down in
-- `resets`. What lies between a module's `do` and `end` is its own: a chunk of Lua has room for 200 locals.
--
-- A function reads a run once and writes it once, at its end. Nothing is written before all that can be refused has been
-- looked at, so one that fails has changed nothing.
--
-- Keys (behind the prefix):
--   :run:ID         hash    f what never changes (JSON), s what does (see below), i input, first (when it continued with
--                           another input), o outcome, st status, l labels (packed), w and c1… what it waits for (see
--                           waits.lua)
--   :cp:ID          hash    checkpoints by key (packed), :cpo:ID zset of their keys by position
--   :sig:ID         hash    signals that wait by position (packed), :sigid:ID hash position by id, :sigw:ID zset by position,
--                           :sign:ID zset by name, then position
--   :sigc:ID        hash    consumed ones by position (packed), :sigcid:ID hash position by id, :sigby:ID zset by the key of
--                           the checkpoint that took them, :sigold:ID hash by id of those from before the run continued
--   :kids:ID        zset    children by number; :parked:ID set of the runs that were parked for this one at last
--   :live :done     zset    runs by number: those that have not ended, those that have
--   :failed         zset    failed runs by number
--   :fin:LANE:STATE zset    ended runs by order of finishing
--   :ready:NAME     zset    the ready set: claimable runs by priority, then place. NAME is a lane, with the owner of the
--                           session behind it, where the run belongs to one: LANE@WORKER, or LANE@ for nobody's yet
--   :hot            set     names of ready sets that may have something
--   :lanes          hash    lanes (packed) with runs, by name; :served:WORKER set of the names that a worker claims from
--   :counts         hash    how many runs a lane has in a state, by STATE:LANE; and how many of the queued or scheduled ones
--                           wait for their group ("group", "group paused", "rate") or on a bench ("session")
--   :timer :due     zset    runs by the time at which they wake, by deadline
--   :owned:WORKER   set     the runs that it owns; :stop:WORKER set of those that are to be cancelled
--   :workers        hash    incarnations (packed) by number; :lease zset by the end of their lease
--   :group          hash    groups (packed); :line:G :early:G … zsets (see grouping.lua); :members:KEY zset of all
--                           runs of a group by number; :groups:KEY set of the names in :group of that key
--   :session        hash    sessions (packed); :seats:S :bench:S zsets; :idle zset; :sessions:WORKER set
--   :scope          hash    limits and pauses (packed) by KIND:NAME; :budget hash of those with a limit or a rate
--   :revisions      list    the changes (packed), latest first; :revisions:KIND:NAME those of one scope
--   :rated          hash    rates of groups (packed) by name; :debt hash what rates have counted, by KIND:NAME
--   :batch:ID       string  how far it is (packed); :items:ID zset of its runs by number; :empty zset of those that were
--                           opened without runs, by time; :opening zset, see staging.lua
--   :keepers        set     what keeps runs from being pruned; :kept:KEEPER set of these, see retaining.lua
--   :schedules      hash    schedules (packed); :slots zset by next slot; :made:NAME zset of its live runs by number
--   :unique:KEY     string  the live run that has it; :taken:KEY zset of all its runs by number
--   :label:KEY      zset    runs with a label by number
--   :n              hash    the numbers given out last
-- And where runs are spread over partitions:
--   :partitions     string  how many there are (in the first one)
--   :where:ID       string  at the home of an id: the place of its run, PARTITION/N, if that is another one
--   :gone           hash    places by id where no run is any more, or none came to be: to be removed at the ids' homes
--   :mail           set     what runs of other partitions are to be told of (packed)

local spread -- whether this is one of several partitions
local P, now, args
local call, pack, unpacked -- which are not there yet when a server loads this
local resets = {}

-- Keys that are the same for many runs, made once: K.live is the key :live.
local K = {}
local function make_key(keys, name)
    local key = P .. name
    keys[name] = key
    return key
end

-- Names that are made of a lane and a word, made once: named_by_lane[word][lane] is word:lane.
local named_by_lane, lane_names = {}, 0
local MOST_NAMES = 10000

local function lane_name(word, lane)
    local names = named_by_lane[word]
    if not names then
        names = {}
        named_by_lane[word] = names
    end
    local name = names[lane]
    if not name then
        lane_names = lane_names + 1
        if lane_names > MOST_NAMES then
            named_by_lane, lane_names, names = {}, 0, {}
        end
        name = word .. ':' .. lane
        names[lane] = name
    end
    return name
end

-- The set of the runs that a worker owns: that of the last one that it was asked for, since it mostly is the same one,
-- and a number becomes a text at the cost of all else.
local owned_key
do
local prefix, owner, key

function owned_key(worker)
    if worker ~= owner or P ~= prefix then
        prefix, owner, key = P, worker, P .. 'owned:' .. worker
    end
    return key
end
end

local function begin_call(keys, argv)
    call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
    local prefix = keys[1] .. ':'
    if prefix ~= P then
        P, K = prefix, setmetatable({}, { __index = make_key })
    end
    args, spread = unpacked(argv[2]), argv[3] ~= nil
    now = tonumber(argv[1])
    if not now then
        local time = call('TIME')
        now = time[1] * 1000 + math.floor(time[2] / 1000)
    end
    for _, reset in ipairs(resets) do
        reset()
    end
end

local FINAL = { succeeded = true, failed = true, cancelled = true }

-- Parts of a name, so joined that no two lists of parts make one name, whatever bytes are in them.
local function join(...)
    local parts = { ... }
    for i, part in ipairs(parts) do
        parts[i] = #part .. ':' .. part
    end
    return table.concat(parts)
end

-- The parts that `join` made a name of.
local function split(name)
    local parts, at = {}, 1
    while at <= #name do
        local _, colon, length = string.find(name, '^(%d+):', at)
        if not colon then
            break
        end
        parts[#parts + 1] = string.sub(name, colon + 1, colon + length)
        at = colon + length + 1
    end
    return parts
end

-- Queue and workflow of a lane, by its name.
local function lane_of(name)
    local parts = split(name)
    return { queue = parts[1], workflow = parts[2] }
end

-- Whether one text comes before another one by its bytes: what Lua compares itself goes by the locale of the server.
local function before(one, other)
    for at = 1, math.min(#one, #other) do
        local mine, theirs = string.byte(one, at), string.byte(other, at)
        if mine ~= theirs then
            return mine < theirs
        end
    end
    return #one < #other
end

local function order(number)
    return struct.pack('>I8', number)
end

-- WRITING. Members are added to one set, or taken from it, with one command for many: whoever reads such a set flushes it
-- before.

local pending, pending_keys = {}, {}
local first_scores -- of sets, as they were read last

local function flush_set(key)
    local waiting = pending[key]
    if waiting then
        pending[key] = nil
        for first = 1, #waiting, 1000 do
            call(waiting.command, key, unpack(waiting, first, math.min(first + 999, #waiting)))
        end
    end
end

local function later(command, key)
    local waiting = pending[key]
    if waiting and waiting.command ~= command then
        flush_set(key)
        waiting = nil
    end
    first_scores[key] = nil
    if not waiting then
        waiting = { command = command }
        pending[key] = waiting
        pending_keys[#pending_keys + 1] = key
    end
    return waiting
end

local function zadd(key, score, member)
    local waiting = pending[key]
    if not waiting or waiting.command ~= 'ZADD' then
        waiting = later('ZADD', key)
    end
    local n = #waiting
    waiting[n + 1], waiting[n + 2] = score, member
end

local function zrem(key, member)
    local waiting = pending[key]
    if not waiting or waiting.command ~= 'ZREM' then
        waiting = later('ZREM', key)
    end
    waiting[#waiting + 1] = member
end

local function sadd(key, member)
    local waiting = later('SADD', key)
    waiting[#waiting + 1] = member
end

local function srem(key, member)
    local waiting = later('SREM', key)
    waiting[#waiting + 1] = member
end

-- The lowest score of a set; false when it is empty.
local function first_score(key)
    local score = first_scores[key]
    if score == nil then
        flush_set(key)
        score = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or false
        first_scores[key] = score
    end
    return score
end

local function flush_sets()
    for _, key in ipairs(pending_keys) do
        flush_set(key)
    end
    pending_keys = {}
end

-- NUMBERS that are given out one after the other, and counts.

local numbers, new_numbers, counted = {}, {}, {}

local function last_number(name)
    if not numbers[name] then
        numbers[name] = tonumber(call('HGET', K.n, name) or 0)
    end
    return numbers[name]
end

local function set_number(name, number)
    numbers[name], new_numbers[name] = number, true
    return number
end

local function next_number(name)
    return set_number(name, last_number(name) + 1)
end

-- Takes so many numbers at once; returns the one before the first.
local function take_numbers(name, many)
    return call('HINCRBY', K.n, name, many) - many
end

-- Numbers that follow the time, so that those of several partitions can be compared: a hundred in each millisecond since
-- the year 2020. They have 14 digits at most until 2051, so as a text they are what they are as numbers.
local in_time = {}

function in_time.now()
    return (now - 1577836800000) * 100
end

-- The next number of a name; where there is one partition it is one more.
function in_time.next(name)
    if not spread then
        return next_number(name)
    end
    return set_number(name, math.max(last_number(name) + 1, in_time.now()))
end

-- Takes so many of these at once; returns the one before the first.
function in_time.take(name, many)
    if not spread then
        return take_numbers(name, many)
    end
    local first = in_time.next(name)
    set_number(name, first + many - 1)
    return first - 1
end

local function count(lane, state, by)
    local states = counted[lane]
    if not states then
        states = {}
        counted[lane] = states
    end
    states[state] = (states[state] or 0) + by
end

-- RUNS

local runs
local changed, changes = {}, 0 -- the runs that are to be kept, and how many these are
local NOTHING = {}
local facts
do
-- What never changes is read once for all calls: few runs differ in it, where no group or parent makes them.
local fact_cache, cached_facts = {}, 0
local MOST_FACTS = 1000

function facts(text)
    local known = fact_cache[text]
    if not known then
        if cached_facts >= MOST_FACTS then
            fact_cache, cached_facts = {}, 0
        end
        cached_facts = cached_facts + 1
        known = cjson.decode(text)
        known.lane = join(known.queue, known.workflow, known.version or '') .. ';' -- So it never ends as LANE@WORKER does.
        known.priority = known.priority or 0
        known.group_name = known.group and join(known.queue, known.group)
        known.session_name = known.session and join(known.queue, known.session)
        fact_cache[text] = known
    end
    return known
end
end

-- What changes of a run is kept as numbers and a place, that most runs have, or may come to have: 0 is nothing. Behind
-- them is what few have, as a packed map, if there is any.
local STATES = { 'queued', 'running', 'scheduled', 'waiting', 'succeeded', 'failed', 'cancelled' }
local read_state, write_state
do
local LAYOUT = '<BBBdddddddddddddddc16'
local LENGTH = 3 + 15 * 8 + 16
local NO_PLACE = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
local HELD = { 'session', 'group', 'paused', 'rate' }
local NO_SLOT = 255
local RARE = {
    'awaited', 'calls_back', 'cause', 'crashes', 'cut', 'errors', 'fired', 'heard', 'home', 'item', 'kept', 'later', 'much',
    'on', 'opens', 'over', 'owner', 'schedule', 'seat', 'signals', 'stops', 'timeout', 'waits', 'why',
}
local STATE_NUMBERS, HELD_NUMBERS = {}, {}
for number = 1, #STATES do
    STATE_NUMBERS[STATES[number]] = number
end
for number = 1, #HELD do
    HELD_NUMBERS[HELD[number]] = number
end

function read_state(text)
    local state, held, slot, seq, made, size, begun, done, finish, worker, low, settled_by, settled, attempt, positions,
        kept_size, due, wake, place = struct.unpack(LAYOUT, text)
    local s = {
        state = STATES[state], held = HELD[held], slot = slot ~= NO_SLOT and slot or nil,
        seq = seq, made = made, size = size,
        begun = begun ~= 0 and begun or nil,
        done = done ~= 0 and done or nil, finish = finish ~= 0 and finish or nil,
        worker = worker ~= 0 and worker or nil, low = worker ~= 0 and low or nil, -- The two parts of its token.
        settled_by = settled_by ~= 0 and settled_by or nil, settled = settled_by ~= 0 and settled or nil,
        attempt = attempt ~= 0 and attempt or nil,
        positions = positions ~= 0 and positions or nil, kept_size = kept_size ~= 0 and kept_size or nil,
        due = due ~= 0 and due or nil, wake = wake ~= 0 and wake or nil,
        place = place ~= NO_PLACE and place or nil,
        rare = nil, -- Whether it has any of what few have: see `mark`.
    }
    if #text > LENGTH then
        s.rare = true
        for name, value in pairs(unpacked(string.sub(text, LENGTH + 1))) do
            s[name] = value
        end
    end
    return s
end

function write_state(s)
    local text = struct.pack(
        LAYOUT, STATE_NUMBERS[s.state], s.held and HELD_NUMBERS[s.held] or 0, s.slot or NO_SLOT, s.seq, s.made, s.size,
        s.begun or 0, s.done or 0, s.finish or 0, s.worker or 0, s.low or 0, s.settled_by or 0, s.settled or 0,
        s.attempt or 0, s.positions or 0, s.kept_size or 0, s.due or 0, s.wake or 0, s.place or NO_PLACE
    )
    if not s.rare then
        return text
    end
    local rare = {}
    for _, name in ipairs(RARE) do
        rare[name] = s[name]
    end
    return next(rare) and text .. pack(rare) or text
end
end

-- Whether a run of no session is in the ready set, by what is kept of it.
local function is_ready(s)
    return s.state == 'queued' and not s.held and s.slot ~= 0
end

local note_found -- of a run of a group, see grouping.lua

-- A run: its `id`, its `fact`s, and `s`, which is kept when `change` was said of it; nil when there is none. `whole` reads
-- also what a claim brings: its `input`, and its `labels` as they are kept.
local function find(id, whole)
    local run = runs[id]
    if run == nil then
        local key = K['run:'] .. id
        local got = whole and call('HMGET', key, 'f', 's', 'i', 'l') or call('HMGET', key, 'f', 's')
        local text = got[2]
        if not text then
            runs[id] = false
            return nil
        end
        local fact, s = facts(got[1]), read_state(text)
        run = {
            id = id, fact = fact, s = s, input = got[3], labels = got[4], ready = is_ready(s),
            changed = false, number = nil, settle = nil, outcome = nil, -- There is room for what comes later.
        }
        if fact.group_name and note_found then
            note_found(run)
        end
        runs[id] = run
    end
    return run or nil
end

local function change(run)
    if not run.changed then
        run.changed = true
        changes = changes + 1
        changed[changes] = run
    end
    return run.s
end

-- The same for what few runs have (see RARE): nothing of it is kept that was not put down by this.
local function mark(run)
    local s = change(run)
    s.rare = true
    return s
end

-- Keeps the outcome of a run; false removes it.
local function keep_outcome(run, body)
    change(run)
    run.outcome = body
end

-- Keeps another field of the run's hash beside `s`; false removes it.
local function keep(run, field, value)
    change(run)
    run.fields = run.fields or {}
    run.fields[field] = value
end

local function write(run)
    local key, text, fields, outcome = K['run:'] .. run.id, write_state(run.s), run.fields, run.outcome
    if run.is_new then
        call('HSET', key, 'f', run.fact_text, 's', text, 'i', run.input)
        if outcome then
            call('HSET', key, 'o', outcome)
        end
    elseif outcome then
        call('HSET', key, 's', text, 'o', outcome)
    else
        call('HSET', key, 's', text)
        if outcome == false then
            call('HDEL', key, 'o')
        end
    end
    for field, value in pairs(fields or NOTHING) do
        if value then
            call('HSET', key, field, value)
        else
            call('HDEL', key, field)
        end
    end
    run.changed, run.is_new, run.fields, run.outcome = false, nil, nil, nil
end

-- TELLING others, when all is written.

local telling, ended_runs = {}, {}
-- Whether a run came into the ready set.
local made_ready
-- The first of the timers that were set.
local new_timer

resets[1] = function()
    -- What a call keeps it clears away: only one that fails leaves something.
    if changes > 0 or pending_keys[1] or ended_runs[1] or next(new_numbers) or next(counted) or next(telling) then
        pending, pending_keys, new_numbers, counted, changed, changes = {}, {}, {}, {}, {}, 0
        telling, ended_runs = {}, {}
    end
    first_scores, numbers, runs = {}, {}, {}
    made_ready, new_timer = false, nil
end

local function tell(topic)
    telling[topic] = true
end

-- Keeps everything that the script has changed.
local flushers = {}
local function flush()
    flush_sets()
    for i = 1, changes do
        if changed[i].changed then -- And not removed since.
            write(changed[i])
        end
    end
    changed, changes = {}, 0
    for name in pairs(new_numbers) do
        call('HSET', K.n, name, numbers[name])
    end
    new_numbers = {}
    for lane, states in pairs(counted) do
        for state, by in pairs(states) do
            if by ~= 0 and call('HINCRBY', K.counts, lane_name(state, lane), by) <= 0 then
                call('HDEL', K.counts, lane_name(state, lane))
            end
        end
    end
    counted = {}
    for _, flusher in ipairs(flushers) do
        flusher()
    end
    flush_sets()
    if #ended_runs > 0 then
        telling.ended = true
    end
    if next(telling) then
        local listeners = call('PUBSUB', spread and 'SHARDNUMSUB' or 'NUMSUB', K.work, K.status, K.ended)
        if telling.work and listeners[2] > 0 then
            call(spread and 'SPUBLISH' or 'PUBLISH', K.work, '')
        end
        if telling.status and listeners[4] > 0 then
            call(spread and 'SPUBLISH' or 'PUBLISH', K.status, '')
        end
        if telling.ended and listeners[6] > 0 then
            for _, ended in ipairs(ended_runs) do
                if runs[ended.id] == false then -- It was removed as well: who waits for it is to find that out.
                    ended.body, ended.long = nil, true
                end
            end
            call(spread and 'SPUBLISH' or 'PUBLISH', K.ended, pack({ v = 1, runs = ended_runs }))
        end
    end
    telling, ended_runs = {}, {}
end

-- The answer to a question that could not be: what went wrong, for the client to make an error of.
local function refuse(kind, ...)
    return pack({ refused = kind, with = { ... } })
end
