-- library: reads
-- flags: no-writes
-- In a cluster: the incarnations whose lease has ended, and those that live; of one name, those that have it, and none;
-- and whether there are chores.

local ended, live = {}, {}
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
    for i, number in ipairs(call('ZRANGEBYSCORE', P .. 'lease', '(' .. now, '+inf')) do
        live[i] = tonumber(number)
    end
end
return pack({ ended, live, call('EXISTS', P .. 'chores') == 1 })
