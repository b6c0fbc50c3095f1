-- What is kept of a run beside itself: checkpoints and signals.

local keep_checkpoint, checkpoints_of, drop_checkpoint, drop_checkpoints
local knows_signal, add_signal, consume, give_back, first_signal, waiting_signals, drop_consumed

do
local function size_of(id, key)
    return call('HSTRLEN', P .. 'cp:' .. id, key)
end

-- Keeps a checkpoint at the run's next position, in place of what was kept under its key. It comes as a packed map that
-- wants two fields more, position and time.
function keep_checkpoint(run, key, outcome, packed)
    local s, id = change(run), run.id
    local kept = P .. 'cp:' .. id
    s.positions = (s.positions or 0) + 1
    packed = packed .. pack('position', s.positions, 'saved_at', now)
    s.kept_size = (s.kept_size or 0) + #packed
    if call('HSETNX', kept, key, packed) == 0 then
        s.kept_size = s.kept_size - size_of(id, key)
        call('HSET', kept, key, packed)
    end
    zadd(P .. 'cpo:' .. id, s.positions, key)
    if outcome == 'error' then
        call('SADD', P .. 'cperr:' .. id, key)
        mark(run).errors = true
    elseif s.errors then
        call('SREM', P .. 'cperr:' .. id, key)
    end
    s.cut = nil
    if outcome ~= 'open' then
        s.crashes = nil
    end
end

-- Checkpoints by position, from the first one behind `after`, and whether there are more.
function checkpoints_of(run, after, limit)
    local id = run.id
    flush_set(P .. 'cpo:' .. id)
    local keys = call('ZRANGEBYSCORE', P .. 'cpo:' .. id, '(' .. after, '+inf', 'LIMIT', 0, limit + 1)
    local found, more, bytes = {}, #keys > limit, 0
    keys[limit + 1] = nil
    if #keys > 0 and (run.s.kept_size or 0) <= BOUNDS.page_bytes then
        for i, packed in ipairs(call('HMGET', P .. 'cp:' .. id, unpack(keys))) do
            found[i] = unpacked(packed)
        end
        return found, more
    end
    for i, key in ipairs(keys) do
        bytes = bytes + size_of(id, key)
        if i > 1 and bytes > BOUNDS.page_bytes then
            return found, true
        end
        found[i] = unpacked(call('HGET', P .. 'cp:' .. id, key))
    end
    return found, more
end

-- SIGNALS. One that waits is in :sig, :sigid, :sigw and :sign. The checkpoint that consumes it moves it to :sigc and :sigcid,
-- and has its key put down in :sigby; when that is cleared it waits again, where it was. When the run continues, what was
-- consumed keeps its id alone, for a while, in :sigold, so that a late repetition is not a new signal. None of this takes
-- the longer the more signals there are.

local function named(name, position)
    return #name .. ':' .. name .. order(position)
end

-- The positions in a sorted set of what is `named` so, `most` at most.
local function positions_of(key, name, most)
    local prefix, found = #name .. ':' .. name, {}
    for i, member in ipairs(call('ZRANGEBYLEX', key, '[' .. prefix .. order(0), '(' .. prefix .. '\255', 'LIMIT', 0, most)) do
        found[i] = struct.unpack('>I8', string.sub(member, #prefix + 1))
    end
    return found
end

local function have_wait(id, position, packed, signal)
    call('HSET', P .. 'sig:' .. id, position, packed)
    call('HSET', P .. 'sigid:' .. id, signal.id, position)
    call('ZADD', P .. 'sigw:' .. id, position, position)
    call('ZADD', P .. 'sign:' .. id, 0, named(signal.name, position))
end

-- Whether a signal of that id came before.
function knows_signal(run, id)
    if run.s.signals then
        for _, key in ipairs({ 'sigid:', 'sigcid:', 'sigold:' }) do
            if call('HEXISTS', P .. key .. run.id, id) == 1 then
                return true
            end
        end
    end
    return false
end

function add_signal(run, signal)
    local s = mark(run)
    s.signals = (s.signals or 0) + 1
    have_wait(run.id, s.signals, pack(signal), signal)
end

-- Takes a signal that waits, for the checkpoint of a key.
function consume(run, position, key)
    local id = run.id
    local packed = run.s.signals and call('HGET', P .. 'sig:' .. id, position)
    if packed then
        local signal = unpacked(packed)
        call('HDEL', P .. 'sig:' .. id, position)
        call('HDEL', P .. 'sigid:' .. id, signal.id)
        call('ZREM', P .. 'sigw:' .. id, position)
        call('ZREM', P .. 'sign:' .. id, named(signal.name, position))
        call('HSET', P .. 'sigc:' .. id, position, packed)
        call('HSET', P .. 'sigcid:' .. id, signal.id, position)
        call('ZADD', P .. 'sigby:' .. id, 0, named(key, position))
    end
end

-- Lets those signals wait again that the checkpoint of a key took.
function give_back(run, key)
    local id = run.id
    local positions = run.s.signals and positions_of(P .. 'sigby:' .. id, key, -1) or NOTHING
    for _, position in ipairs(positions) do
        local packed = call('HGET', P .. 'sigc:' .. id, position)
        local signal = unpacked(packed)
        call('HDEL', P .. 'sigc:' .. id, position)
        call('HDEL', P .. 'sigcid:' .. id, signal.id)
        call('ZREM', P .. 'sigby:' .. id, named(key, position))
        have_wait(id, position, packed, signal)
    end
end

-- The first signal of a name that waits.
function first_signal(run, name)
    local position = run.s.signals and positions_of(P .. 'sign:' .. run.id, name, 1)[1]
    if not position then
        return nil
    end
    local signal = unpacked(call('HGET', P .. 'sig:' .. run.id, position))
    return { position = position, name = signal.name, body = signal.body }
end

-- Signals that wait, by position, from the first one behind `after`, and whether there are more.
function waiting_signals(run, after, limit)
    local found, bytes = {}, 0
    if not run.s.signals then
        return found, false
    end
    local key = P .. 'sig:' .. run.id
    local positions = call('ZRANGEBYSCORE', P .. 'sigw:' .. run.id, '(' .. after, '+inf', 'LIMIT', 0, limit + 1)
    for i = 1, math.min(#positions, limit) do
        bytes = bytes + call('HSTRLEN', key, positions[i])
        if i > 1 and bytes > BOUNDS.page_bytes then
            return found, true
        end
        local signal = unpacked(call('HGET', key, positions[i]))
        found[i] = { position = tonumber(positions[i]), name = signal.name, body = signal.body }
    end
    return found, #positions > limit
end

-- Forgets what was remembered, and keeps of what was consumed the ids alone.
function drop_consumed(run)
    if run.s.signals then
        local consumed, old = P .. 'sigcid:' .. run.id, P .. 'sigold:' .. run.id
        call('UNLINK', old, P .. 'sigc:' .. run.id, P .. 'sigby:' .. run.id)
        if call('EXISTS', consumed) == 1 then
            call('RENAME', consumed, old)
        end
    end
end

-- Clears a checkpoint; what it took waits again.
function drop_checkpoint(run, key)
    local s = change(run)
    s.kept_size = (s.kept_size or 0) - size_of(run.id, key)
    call('HDEL', P .. 'cp:' .. run.id, key)
    zrem(P .. 'cpo:' .. run.id, key)
    give_back(run, key)
end

function drop_checkpoints(run)
    flush_set(P .. 'cpo:' .. run.id)
    call('UNLINK', P .. 'cp:' .. run.id, P .. 'cpo:' .. run.id, P .. 'cperr:' .. run.id)
    local s = change(run)
    s.kept_size, s.errors, s.positions = nil, nil, nil
end
end
