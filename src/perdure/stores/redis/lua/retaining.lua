-- What keeps runs from being pruned: a parent that lives, or a batch that does. Those that are passed over are not found
-- again before that has ended: they are in :kept:KEEPER, and not in :fin.

local function lives(id)
    local run = id and find(id)
    return run and not FINAL[run.s.state] or false
end

-- A batch lives until all of its runs, and its callback, have ended.
local function batch_lives(id)
    local batch = batch_of(id)
    return batch and (not batch_is_over(batch) or lives(batch.callback)) or false
end

-- Whether a keeper, run:ID or batch:ID, still lives.
local function keeps(keeper)
    local kind, id = string.match(keeper, '^(%l+):(.*)$')
    if kind == 'run' then
        return lives(id)
    end
    return batch_lives(id)
end

local function keeper_of(run)
    if lives(run.fact.parent) then
        return 'run:' .. run.fact.parent
    elseif run.fact.batch and batch_lives(run.fact.batch) then
        return 'batch:' .. run.fact.batch
    end
end

local function pass_over(run, keeper)
    mark(run).kept = keeper
    zrem(P .. 'fin:' .. run.fact.lane .. ':' .. run.s.state, run.id)
    call('SADD', P .. 'kept:' .. keeper, run.id)
    call('SADD', P .. 'keepers', keeper)
end
