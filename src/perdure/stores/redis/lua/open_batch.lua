-- uses: core holding starting ending
-- Makes all runs of a batch and its callback, which waits for them; or nothing, when one of them is there as another
-- one. Answers for each start 0 when its run was made, as asked, and otherwise what became of it.

local function same(one, other)
    return one.input == other.input and facts(one.facts).workflow == facts(other.facts).workflow
end

-- The id of the first start that names something else than what is there, or what an earlier one makes.
local function conflicting(starts, callback)
    local asked = {}
    local function conflicts(start)
        local run, earlier = find(start.id), asked[start.id]
        asked[start.id] = earlier or start
        if run then
            return not existed(run, start).same
        end
        return earlier and not same(earlier, start)
    end
    for _, start in ipairs(starts) do
        if conflicts(start) then
            return start.id
        end
    end
    return callback and conflicts(callback) and callback.id
end

local id, starts, callback = args.batch, args.starts, args.callback
local there = batch_of(id)
if there then
    if there.items ~= #starts then
        return refuse('items', there.items)
    elseif there.callback ~= (callback and callback.id) then
        return refuse('callback', there.callback or false)
    end
end
local conflict = conflicting(starts, not there and callback)
if conflict then
    return refuse('conflict', conflict)
end

local answers = {}
if there then
    for i, start in ipairs(starts) do
        answers[i] = { id = start.id, existed = true, same = true }
    end
    return pack(answers)
end
local batch = { items = #starts, total = 0, succeeded = 0, failed = 0, cancelled = 0 }
batch.callback = callback and callback.id
put_batch(id, batch)
for i, start in ipairs(starts) do
    answers[i] = begin(start)
end
if callback then
    begin(callback, { key = 'batch:' .. id, what = 'batch', target = id })
    local run = find(callback.id)
    if run then
        change(run).calls_back = id
        if batch_is_over(batch) then
            wake(run)
        end
    end
elseif #starts == 0 then
    call('ZADD', P .. 'empty', now, id)
end
tell('work')
flush()
return pack(answers)
