-- What is kept of a run beside itself: checkpoints and signals.

local function size_of(id, key)
    return call('HSTRLEN', P .. 'cp:' .. id, key)
end

-- Keeps a checkpoint at the run's next position, in place of what was kept under its key. It comes as a packed map of less
-- than fourteen fields, so how many there are is in its first byte: position and time are added without unpacking it.
local function keep_checkpoint(run, key, outcome, packed)
    local s, id = change(run), run.id
    if s.positions then
        s.kept_size = (s.kept_size or 0) - size_of(id, key)
    end
    s.positions = (s.positions or 0) + 1
    packed = string.char(string.byte(packed) + 2) .. string.sub(packed, 2) .. pack('position', s.positions, 'saved_at', now)
    s.kept_size = (s.kept_size or 0) + #packed
    call('HSET', P .. 'cp:' .. id, key, packed)
    zadd(P .. 'cpo:' .. id, s.positions, key)
    if outcome == 'error' then
        call('SADD', P .. 'cperr:' .. id, key)
        s.errors = true
    elseif s.errors then
        call('SREM', P .. 'cperr:' .. id, key)
    end
    if outcome ~= 'open' and (s.crashes or 0) > 0 then
        s.crashes = nil
    end
end

-- Checkpoints by position, from the first one behind `after`.
local function checkpoints_of(id, after, limit)
    flush_set(P .. 'cpo:' .. id)
    local keys = call('ZRANGEBYSCORE', P .. 'cpo:' .. id, '(' .. after, '+inf', 'LIMIT', 0, limit)
    local found = {}
    if #keys > 0 then
        for i, packed in ipairs(call('HMGET', P .. 'cp:' .. id, unpack(keys))) do
            found[i] = unpacked(packed)
        end
    end
    return found
end

-- SIGNALS. One that waits has a body and nobody that took it. The checkpoint that consumes it has its key put down as
-- `taken_by`; when that is cleared it waits again. When the run continues, what was consumed keeps its id alone, for a
-- while, so that a late repetition is not a new signal.

local function named(name, position)
    return #name .. ':' .. name .. order(position)
end

local function set_waiting(id, position, signal, waiting)
    if waiting then
        call('ZADD', P .. 'sigw:' .. id, position, position)
        call('ZADD', P .. 'sign:' .. id, 0, named(signal.name, position))
    else
        call('ZREM', P .. 'sigw:' .. id, position)
        call('ZREM', P .. 'sign:' .. id, named(signal.name, position))
    end
end

local function read_signal(id, position)
    local packed = call('HGET', P .. 'sig:' .. id, position)
    return packed and unpacked(packed)
end

local function put_signal(id, position, signal)
    call('HSET', P .. 'sig:' .. id, position, pack(signal))
end

local function consume(run, position, key)
    local signal = run.s.signals and read_signal(run.id, position)
    if signal and signal.body and not signal.taken_by then
        signal.taken_by = key
        put_signal(run.id, position, signal)
        set_waiting(run.id, position, signal, false)
    end
end

-- The first signal of a name that waits.
local function first_signal(run, name)
    if not run.s.signals then
        return nil
    end
    local prefix = #name .. ':' .. name
    local found = call('ZRANGEBYLEX', P .. 'sign:' .. run.id, '[' .. prefix .. order(0), '(' .. prefix .. '\255', 'LIMIT', 0, 1)
    if not found[1] then
        return nil
    end
    local position = struct.unpack('>I8', string.sub(found[1], #prefix + 1))
    local signal = read_signal(run.id, position)
    return { position = position, name = signal.name, body = signal.body }
end

local function waiting_signals(run, after, limit)
    local found = {}
    if run.s.signals then
        for i, position in ipairs(call('ZRANGEBYSCORE', P .. 'sigw:' .. run.id, '(' .. after, '+inf', 'LIMIT', 0, limit)) do
            local signal = read_signal(run.id, position)
            found[i] = { position = tonumber(position), name = signal.name, body = signal.body }
        end
    end
    return found
end

-- Lets those signals wait again that the checkpoint of a key took; without a key those whose checkpoints were cleared.
local function give_back(run, key)
    if not run.s.signals then
        return
    end
    local all = call('HGETALL', P .. 'sig:' .. run.id)
    for i = 1, #all, 2 do
        local signal = unpacked(all[i + 1])
        local taker = signal.taken_by
        if taker and (taker == key or (not key and call('HEXISTS', P .. 'cp:' .. run.id, taker) == 0)) then
            signal.taken_by = nil
            put_signal(run.id, all[i], signal)
            set_waiting(run.id, tonumber(all[i]), signal, true)
        end
    end
end

-- Forgets what was remembered, and keeps of what was consumed the ids alone.
local function drop_consumed(run)
    if not run.s.signals then
        return
    end
    local all = call('HGETALL', P .. 'sig:' .. run.id)
    for i = 1, #all, 2 do
        local signal = unpacked(all[i + 1])
        if not signal.body then
            call('HDEL', P .. 'sig:' .. run.id, all[i])
            call('HDEL', P .. 'sigid:' .. run.id, signal.id)
        elseif signal.taken_by then
            put_signal(run.id, all[i], { id = signal.id, name = signal.name })
        end
    end
end

local function drop_checkpoint(run, key)
    local s = change(run)
    s.kept_size = (s.kept_size or 0) - size_of(run.id, key)
    call('HDEL', P .. 'cp:' .. run.id, key)
    zrem(P .. 'cpo:' .. run.id, key)
end

-- Clears the checkpoints of what failed.
local function drop_errors(run)
    if run.s.errors then
        for _, key in ipairs(call('SMEMBERS', P .. 'cperr:' .. run.id)) do
            drop_checkpoint(run, key)
        end
        call('DEL', P .. 'cperr:' .. run.id)
        change(run).errors = nil
    end
end

local function drop_checkpoints(run)
    flush_set(P .. 'cpo:' .. run.id)
    call('DEL', P .. 'cp:' .. run.id, P .. 'cpo:' .. run.id, P .. 'cperr:' .. run.id)
    local s = change(run)
    s.kept_size, s.errors, s.positions = nil, nil, nil
end
