-- A run is done once more: the checkpoints of what failed are cleared, or all from one on.

local retry_run

do
local FEW = 20 -- So many are cleared at once, beside whatever else the script does.
local SCANNED, MARKED = 100, 20 -- To look at so many, or to mark so many, is as much as to take up a run.

-- How many count as one run; those may have signals to give back.
local function in_one_step(run)
    return run.s.signals and 1 or 5
end

-- Clears checkpoints: those of what failed, then those from a position on, the last ones first; `most` at most. Returns
-- whether those are all.
local function clear(run, from, most)
    local placed = P .. 'cpo:' .. run.id
    local failed, rest = run.s.errors and call('SPOP', P .. 'cperr:' .. run.id, most) or NOTHING, NOTHING
    for _, key in ipairs(failed) do
        drop_checkpoint(run, key)
    end
    if from and #failed < most then
        flush_set(placed)
        rest = call('ZREVRANGEBYSCORE', placed, '+inf', from, 'LIMIT', 0, most - #failed)
        for _, key in ipairs(rest) do
            drop_checkpoint(run, key)
        end
    end
    local cleared = #failed + #rest
    steps = steps - math.floor(cleared / in_one_step(run))
    if cleared == most then
        return false
    end
    change(run).errors = nil
    return true
end

-- Has the checkpoints of what a step called, which came before its own, be cleared as those of what failed are. Walks all
-- of the run once, from a cursor, as far as this script may; returns where it is then, unless that was all.
local function mark_within(run, step, cursor)
    local pattern = step:gsub('[%*%?%[%]\\^]', '\\%0') .. '/*'
    repeat
        local scanned = call('ZSCAN', P .. 'cpo:' .. run.id, cursor, 'MATCH', pattern, 'COUNT', 10 * SCANNED)
        local keys = {}
        for i = 1, #scanned[2], 2 do
            keys[#keys + 1] = scanned[2][i]
        end
        if keys[1] then
            call('SADD', P .. 'cperr:' .. run.id, unpack(keys))
            mark(run).errors = true
        end
        cursor, steps = scanned[1], steps - 10 - math.floor(#keys / MARKED)
    until cursor == '0' or steps <= 0
    return cursor ~= '0' and cursor or nil
end

-- How many there are to be cleared, about.
local function to_be_cleared(run, from)
    local errors = run.s.errors and call('SCARD', P .. 'cperr:' .. run.id) or 0
    return errors + (from and call('ZCOUNT', P .. 'cpo:' .. run.id, from, '+inf') or 0)
end

-- Queues a run once more, or has it wait until then, when all is cleared that failed, and what has come from a position
-- on, with what the step there called. Where that is much it is scheduled meanwhile, without a time, so that nobody begins
-- it; whoever goes on with chores then queues it.
function retry_run(run, from, at, step)
    local cursor = step and mark_within(run, step, '0')
    if not cursor and to_be_cleared(run, from) <= FEW then
        clear(run, from, 2 * FEW)
        move(run, at and 'scheduled' or 'queued', at)
    else
        move(run, 'scheduled')
        begin_chore('clear', run.id, { from = from, at = at, attempt = run.s.attempt, step = step, cursor = cursor })
    end
end

function chore_kinds.clear(id, chore)
    local run = find(id)
    if not run or run.s.state ~= 'scheduled' or run.s.wake or run.s.attempt ~= chore.attempt then
        return true -- It was cancelled meanwhile, or removed.
    end
    if chore.cursor then
        chore.cursor = mark_within(run, chore.step, chore.cursor)
        if chore.cursor or steps <= 0 then
            return false
        end
    end
    if not clear(run, chore.from, in_one_step(run) * (steps + 1)) then
        return false
    end
    local later = chore.at and chore.at > now
    move(run, later and 'scheduled' or 'queued', later and chore.at or nil)
    tell('work')
    return true
end
end
