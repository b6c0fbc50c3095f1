-- library: changes
-- Queues runs that ended once more: one, of which what can't be is said, or several, of which those are left out whose
-- unique key another live run has. Answers the ids of those that it does; with `dry_run` of those that it would, and the
-- keys that they would have then: what is told as `claimed` to the next such question.

-- Whether another live run has its key; one that gave it up when it began does not ask for it again.
local function key_taken(run, claimed)
    local key = unique_key(run.fact)
    if not key or (run.fact.debounced and run.s.begun) then
        return false
    end
    return call('EXISTS', P .. 'unique:' .. key) == 1 or claimed[key] or false
end

local function again(run, from, step)
    local s = change(run)
    unfinish(run)
    s.attempt = (s.attempt or 1) + 1
    s.crashes, s.cut, s.due, s.done, s.finish, s.cause = nil, nil, nil, nil, nil, nil
    s.later, s.timeout = nil, nil
    keep_outcome(run, false)
    zadd(K.live, s.seq, run.id)
    note_batch(run, s.state, -1)
    if s.schedule then
        zadd(P .. 'made:' .. s.schedule, s.seq, run.id)
    end
    local key = unique_key(run.fact)
    if key and not (run.fact.debounced and s.begun) then
        call('SET', P .. 'unique:' .. key, run.id)
    end
    retry_run(run, from, nil, step)
    tell('work')
    tell('status')
end

local done, claimed = {}, {}
if args.run_id then
    local run = find(args.run_id)
    if not run then
        return refuse('missing')
    end
    local state = run.s.state
    if not FINAL[state] then
        return refuse('not ended', state)
    elseif state == 'succeeded' and not args.from_key then
        return refuse('succeeded')
    elseif key_taken(run, claimed) then
        return refuse('taken')
    end
    local from = args.from_key and call('ZSCORE', P .. 'cpo:' .. run.id, args.from_key)
    if args.from_key and not from then
        return refuse('no checkpoint')
    end
    again(run, from, args.from_key)
    done[1] = run.id
else
    for _, key in ipairs(args.claimed or {}) do
        claimed[key] = true
    end
    local keys = {}
    for _, id in ipairs(args.ids) do
        local run = find(id)
        if run and (run.s.state == 'failed' or run.s.state == 'cancelled') and not key_taken(run, claimed) then
            local key = unique_key(run.fact)
            if key and not (run.fact.debounced and run.s.begun) then
                claimed[key] = true
                keys[#keys + 1] = key
            end
            done[#done + 1] = id
            if not args.dry_run then
                again(run)
            end
        end
    end
    if args.dry_run then
        return pack({ ids = done, claimed = keys })
    end
end
local left = chores_left()
flush()
return pack({ ids = done, left = left })
