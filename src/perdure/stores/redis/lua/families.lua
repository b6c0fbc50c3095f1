-- Families: what becomes of a run, and with it of all that descends from it.

local family, stop, stop_family, expire, remove_family

do
-- Asks for the end of a run that is owned; the first reason stays.
local function ask(run, reason, overdue)
    local s = change(run)
    if not s.why then
        mark(run).why, s.over = reason, overdue or nil
        call('SADD', P .. 'stop:' .. s.worker, run.id)
        zrem(K.due, run.id)
        tell('work')
        tell('status')
    end
end

-- Children of a run, by number, from the first one behind `after` to `last`: a list of ids and numbers.
local function children(id, after, last, most)
    local key = P .. 'kids:' .. id
    flush_set(key)
    return call('ZRANGEBYSCORE', key, '(' .. after, last, 'WITHSCORES', 'LIMIT', 0, most)
end

local function has_children(id)
    local key = P .. 'kids:' .. id
    flush_set(key)
    return call('EXISTS', key) == 1
end

-- A run and what descends from it, parents first; nil when it is more than a script may take up.
function family(id)
    local found, seen = { id }, { [id] = true }
    local i = 1
    while found[i] do
        local theirs = children(found[i], 0, '+inf', STEPS)
        for at = 1, #theirs, 2 do
            local child = theirs[at]
            if not seen[child] then
                seen[child] = true
                found[#found + 1] = child
            end
        end
        if #found > STEPS then
            return nil
        end
        i = i + 1
    end
    return found
end

-- Ends a run that is not running, and asks for the end of one that is. `body` is the reason as JSON.
function stop(run, reason, body)
    if run.s.state == 'running' then
        ask(run, reason)
    elseif not FINAL[run.s.state] then
        finish(run, 'cancelled', body)
        tell('work')
    end
end

-- Has the children of a run stopped that are there now, and theirs; what was begun before under the same number is not
-- begun again: a run that bears the id of one that was pruned may descend from its own children.
local function stop_children(run, reason, body)
    if has_children(run.id) and run.s.stops ~= number_of_chores() then
        mark(run).stops = number_of_chores()
        begin_chore('stop', run.id, { after = 0, last = last_number('seq'), reason = reason, body = body })
    end
end

function chore_kinds.stop(id, chore)
    local most = steps + 1
    local theirs = children(id, chore.after, chore.last, most)
    for i = 1, #theirs, 2 do
        local run = find(theirs[i])
        if run then
            stop(run, chore.reason, chore.body)
            stop_children(run, chore.reason, chore.body)
        end
        steps, chore.after = steps - 1, tonumber(theirs[i + 1])
    end
    return #theirs < 2 * most
end

function stop_family(id, reason, body)
    local run = find(id)
    if run then
        stop(run, reason, body)
        stop_children(run, reason, body)
    end
end

-- Ends runs whose deadline has passed as failed, where they are not running; those that are running are asked to end.
-- What descends from either kind is cancelled.
function expire(late)
    for _, run in ipairs(late) do
        if run.s.state == 'running' then
            ask(run, DEADLINE_PASSED, true)
        elseif not FINAL[run.s.state] then
            finish(run, 'failed', OVERDUE_ERROR, OVERDUE)
            tell('work')
        end
    end
    for _, run in ipairs(late) do
        stop_family(run.id, PARENT_DEADLINE_PASSED, PARENT_DEADLINE_BODY)
    end
end

-- Removes a run with all that descends from it; what has not ended is cancelled first. `removed` is how many there are.
function remove_family(run, body, removed)
    if not FINAL[run.s.state] then
        finish(run, 'cancelled', body)
        tell('work')
    end
    if has_children(run.id) then
        begin_chore('remove', run.id, { last = last_number('seq'), body = body, removed = removed })
    end
    remove(run)
end

function chore_kinds.remove(id, chore)
    local most = math.ceil((steps + 1) / 2) -- It is twice as much as what is done to one run otherwise.
    local theirs = children(id, 0, chore.last, most)
    for i = 1, #theirs, 2 do
        local run = find(theirs[i])
        if run then
            remove_family(run, chore.body)
        end
        zrem(P .. 'kids:' .. id, theirs[i])
        steps = steps - 2
    end
    return #theirs < 2 * most
end
end
