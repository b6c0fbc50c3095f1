-- library: reads
-- flags: no-writes
-- How many ready runs of its queue that workers serve come before a queued run, `most` at most.

local run = find(args.run_id)
if not run or run.s.state ~= 'queued' then
    return pack(0)
end
local fact = run.fact
local priority, member = fact.priority, (run.s.place or order(run.s.seq) .. order(0)) .. run.id

-- How many members of a ready set come before the run: by halves, since it need not be in there itself.
local function ahead_in(key)
    local low = call('ZCOUNT', key, '-inf', '(' .. priority)
    local high = call('ZCOUNT', key, '-inf', priority)
    while low < high and low < args.most do
        local middle = math.floor((low + high) / 2)
        if before(call('ZRANGE', key, middle, middle)[1], member) then
            low = middle + 1
        else
            high = middle
        end
    end
    return low
end

local owner
if fact.session then
    local packed = call('HGET', K.session, join(fact.queue, fact.session))
    owner = packed and unpacked(packed).owner or ''
end
local served = {}
for _, worker in ipairs(call('HKEYS', K.workers)) do
    served[#served + 1] = P .. 'served:' .. worker
end
local ahead = 0
if #served > 0 then
    for _, name in ipairs(call('SUNION', unpack(served))) do
        if lane_of(name).queue == fact.queue and call('HEXISTS', K.lanes, name) == 1 then
            ahead = ahead + ahead_in(P .. 'ready:' .. name)
            if owner then
                ahead = ahead + ahead_in(P .. 'ready:' .. name .. '@' .. owner)
            end
        end
    end
end
return pack(math.min(ahead, args.most))
