-- Runs as they are kept, and what is told of them when all is written.

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
local read_state, write_state, states_alike
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
        state = STATES[state], seq = seq, made = made, size = size, place = place ~= NO_PLACE and place or nil,
        -- There is room for what most come to have.
        begun = nil, worker = nil, low = nil, done = nil, finish = nil, settled_by = nil, settled = nil,
    }
    if held ~= 0 then
        s.held = HELD[held]
    end
    if slot ~= NO_SLOT then
        s.slot = slot
    end
    if begun ~= 0 then
        s.begun = begun
    end
    if worker ~= 0 then
        s.worker, s.low = worker, low -- The two parts of its token.
    end
    if settled_by ~= 0 then
        s.settled_by, s.settled = settled_by, settled
    end
    if done ~= 0 then
        s.done, s.finish = done, finish
    end
    if attempt ~= 0 then
        s.attempt = attempt
    end
    if positions ~= 0 then
        s.positions, s.kept_size = positions, kept_size
    end
    if due ~= 0 then
        s.due = due
    end
    if wake ~= 0 then
        s.wake = wake
    end
    if #text > LENGTH then
        s.rare = true -- It has some of what few have: see `mark`.
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

-- Writes the states of runs that differ in nothing but number, size and place.
function states_alike(s)
    local text = write_state(s)
    local first, made, others = string.sub(text, 1, 3), string.sub(text, 12, 19), string.sub(text, 28, LENGTH - 16)
    return function(seq, size, place)
        return first .. struct.pack('<d', seq) .. made .. struct.pack('<d', size) .. others .. place
    end
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

resets[#resets + 1] = function()
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

local flushers = {}
local flush
do
-- Who waits for results is told of them, unless they are long: then of the end alone.
local LONGEST_TOLD = 8192

local function shown_ends()
    local shown = {}
    for i, run in ipairs(ended_runs) do
        local body = run.told
        -- One that was removed as well: who waits for it is to find that out.
        local unsaid = runs[run.id] == false or (body and #body > LONGEST_TOLD)
        shown[i] = { id = run.id, state = run.s.state, body = not unsaid and body or nil, long = unsaid or nil }
    end
    return shown
end

-- Keeps everything that the script has changed.
function flush()
    flush_sets()
    for i = 1, changes do
        if changed[i].changed then -- And not removed since.
            write(changed[i])
        end
    end
    if changes > 0 then
        changed, changes = {}, 0
    end
    for name in pairs(new_numbers) do
        call('HSET', K.n, name, numbers[name])
        new_numbers[name] = nil
    end
    for lane, states in pairs(counted) do
        for state, by in pairs(states) do
            if by ~= 0 and call('HINCRBY', K.counts, lane_name(state, lane), by) <= 0 then
                call('HDEL', K.counts, lane_name(state, lane))
            end
        end
    end
    if next(counted) then
        counted = {}
    end
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
            call(spread and 'SPUBLISH' or 'PUBLISH', K.ended, pack({ v = 1, runs = shown_ends() }))
        end
        telling, ended_runs = {}, {}
    end
end

end

-- The answer to a question that could not be: what went wrong, for the client to make an error of.
local function refuse(kind, ...)
    return pack({ refused = kind, with = { ... } })
end
