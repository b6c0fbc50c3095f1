-- Batches that are too long for one script. Their runs are made in parts, and wait, until the last one is there: from then
-- on the batch is open, and they are let in, in parts as well. One that is given up before that is dropped, in parts.
-- Whoever comes goes on where somebody has left off: :opening has the batches of either kind, by the time from which
-- nobody is expected to care for them any more.

local PART = 50
local PATIENCE = 60000

local function expect(id)
    call('ZADD', P .. 'opening', now + PATIENCE, id)
end

-- The id of the first start that names something else than what is there, or what an earlier one makes; of a batch that
-- is not open yet (`opens`) also of one whose run is there and is not of the batch.
local function conflicting(starts, callback, opens)
    local asked = {}
    local function conflicts(start)
        local run, earlier = find(start.id), asked[start.id]
        asked[start.id] = earlier or start
        if run then
            return (opens and run.fact.batch ~= opens) or not existed(run, start).same
        end
        local same = not earlier or earlier.input == start.input
        return not same or (earlier and facts(earlier.facts).workflow ~= facts(start.facts).workflow)
    end
    for _, start in ipairs(starts) do
        if conflicts(start) then
            return start.id
        end
    end
    return callback and conflicts(callback) and callback.id
end

-- Makes the run that waits for the others.
local function make_callback(id, batch, callback)
    begin(callback, { key = 'batch:' .. id, what = 'batch', target = id })
    local run = find(callback.id)
    if run then
        mark(run).calls_back = id
        if batch_is_over(batch) then
            wake(run)
        end
    end
end

local function batch_part(id, after)
    flush_set(P .. 'items:' .. id)
    return call('ZRANGEBYSCORE', P .. 'items:' .. id, '(' .. after, '+inf', 'LIMIT', 0, PART)
end

-- Lets a part of the runs in of a batch that is open; returns whether there are more.
local function let_part_in(id, batch)
    local ids = batch_part(id, batch.admitted)
    for _, each in ipairs(ids) do
        local run = find(each)
        local s = run.s
        batch.admitted = s.seq
        if s.opens then
            local due = s.opens > now and s.opens or nil
            change(run).opens, s.item = nil, nil
            if s.state == 'waiting' then
                put_waits(run)
                move(run, due and 'scheduled' or 'queued', due)
            end
        end
    end
    tell('work')
    if #ids < PART then
        batch.admitted = nil
        call('ZREM', P .. 'opening', id)
    end
    put_batch(id, batch)
    return #ids == PART
end

-- Removes a part of the runs of a batch that is not open, and the batch with the last one; returns whether there are more.
local function drop_part(id, batch)
    batch.dropped = true
    put_batch(id, batch)
    local ids = batch_part(id, 0)
    for _, each in ipairs(ids) do
        local run = find(each)
        if not FINAL[run.s.state] then
            finish(run, 'cancelled', '"its batch was not opened"')
        end
        remove(run)
    end
    if #ids == PART then
        return true
    end
    call('DEL', P .. 'batch:' .. id)
    call('ZREM', P .. 'opening', id)
    batches[id] = false
    return false
end
