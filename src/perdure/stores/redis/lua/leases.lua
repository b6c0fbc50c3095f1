-- library: reads
-- flags: no-writes
-- In a cluster: the incarnations whose lease has ended, and those that live; of one name, those that have it, and none;
-- when the first lease ends of those that live; whether there are chores; and what time it is.

local ended, live = {}, {}
local next_at
if args.name then
    local workers = call('HGETALL', P .. 'workers')
    for i = 1, #workers, 2 do
        if unpacked(workers[i + 1]).name == args.name then
            ended[#ended + 1] = tonumber(workers[i])
        end
    end
else
    for i, number in ipairs(call('ZRANGEBYSCORE', P .. 'lease', '-inf', now)) do
        ended[i] = tonumber(number)
    end
    local leases = call('ZRANGEBYSCORE', P .. 'lease', '(' .. now, '+inf', 'WITHSCORES')
    for i = 1, #leases, 2 do
        live[#live + 1] = tonumber(leases[i])
    end
    next_at = tonumber(leases[2])
end
return pack({ ended = ended, live = live, next_at = next_at, chores = call('EXISTS', P .. 'chores') == 1, now = now })
