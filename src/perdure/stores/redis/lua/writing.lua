-- WRITING. Members are added to one set, or taken from it, with one command for many: whoever reads such a set flushes it
-- before.

local pending, pending_keys = {}, {}
local first_scores -- of sets, as they were read last

local function flush_set(key)
    local waiting = pending[key]
    if waiting then
        pending[key] = nil
        local n = #waiting
        if n == 0 then
            return -- All of it was taken back.
        elseif n <= 1000 then
            call(waiting.command, key, unpack(waiting))
            return
        end
        for first = 1, n, 1000 do
            call(waiting.command, key, unpack(waiting, first, math.min(first + 999, n)))
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

-- Takes back that a member was to be added to a set, if it is what came last, and never was in it before. Returns whether
-- it was, and whether nothing else is to be added.
local function take_back_add(key, member)
    local waiting = pending[key]
    local n = waiting and #waiting or 0
    if n == 0 or waiting[n] ~= member or string.sub(waiting.command, 2) ~= 'ADD' then
        return false
    end
    waiting[n] = nil
    if waiting.command == 'ZADD' then
        waiting[n - 1] = nil
    end
    return true, not waiting[1]
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
    if numbers[name] then
        return set_number(name, numbers[name] + 1)
    end
    numbers[name] = call('HINCRBY', K.n, name, 1) -- Most calls take one.
    return numbers[name]
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
