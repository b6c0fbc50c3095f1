-- uses: core holding seating grouping moving starting ending retaining
-- flags: allow-oom
-- Removes runs that policies let go, in the order in which they ended, a bounded number with a bounded number of
-- checkpoints and signals; but for those that something keeps. Answers how many were removed, and whether there may be
-- more.

local STEP = 16 -- How many runs of one place are read at a time.

-- The runs of one place: those of a lane that ended in a state.
local function walk(place)
    return { key = P .. 'fin:' .. place[1] .. ':' .. place[2], at = 1, first = 0, runs = {} }
end

local function head(walked)
    if walked.at > #walked.runs then
        walked.runs = call('ZRANGE', walked.key, walked.first, walked.first + STEP - 1, 'WITHSCORES')
        walked.first, walked.at = walked.first + STEP, 1
    end
    return tonumber(walked.runs[walked.at + 1])
end

-- What a policy lets go, one after the other: nil when one comes that is to stay, as all that come after it.
local function policy_of(asked)
    local policy = { walks = {}, number = 0, surplus = 0 }
    local runs = 0
    for i, place in ipairs(asked.places) do
        policy.walks[i] = walk(place)
        runs = runs + call('ZCARD', policy.walks[i].key)
    end
    policy.last = asked.last
    if asked.count and not asked.last then
        policy.surplus = runs - asked.count
    end
    policy.latest = asked.age and now - asked.age
    return policy
end

local function next_of(policy)
    local first, best
    for _, walked in ipairs(policy.walks) do
        local finish = head(walked)
        if finish and (not best or finish < best) then
            first, best = walked, finish
        end
    end
    if not first then
        return nil
    end
    local id = first.runs[first.at]
    local counted = policy.number < policy.surplus or (policy.last and best <= policy.last)
    if not counted and not (policy.latest and find(id).s.done <= policy.latest) then
        return nil
    end
    return first, id, best
end

local policies = {}
for i, asked in ipairs(args.policies) do
    policies[i] = policy_of(asked)
end
local going, rows, more = {}, 0, false
while true do
    local policy, walked, id, best
    for _, each in ipairs(policies) do
        if each.found == nil then
            local first, its, finish = next_of(each)
            each.found = first and { first, its, finish } or false
        end
        if each.found and (not best or each.found[3] < best) then
            policy, walked, id, best = each, unpack(each.found)
        end
    end
    if not policy then
        break
    end
    local run = find(id)
    rows = rows + (run.s.positions or 0) + (run.s.signals or 0)
    if #going >= args.limit or (rows > args.rows and #going > 0) then
        more = true
        break
    end
    going[#going + 1] = run
    policy.number, policy.found, walked.at = policy.number + 1, nil, walked.at + 2
end

local removed = 0
for _, run in ipairs(going) do
    local keeper = keeper_of(run)
    if keeper then
        pass_over(run, keeper)
        more = true
    else
        remove(run)
        removed = removed + 1
    end
end

-- Batches that were opened with nothing, so that no run takes them along.
if args.empty then
    for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'empty', '-inf', now - args.empty, 'LIMIT', 0, args.limit)) do
        local batch = batch_of(id)
        if batch and batch.total == 0 then
            call('DEL', P .. 'batch:' .. id)
            batches[id] = false
        end
        call('ZREM', P .. 'empty', id)
        more = true
    end
end
flush()
return pack({ removed = removed, more = more })
