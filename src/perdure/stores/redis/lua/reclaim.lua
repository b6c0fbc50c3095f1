-- uses: core holding seating grouping moving starting ending working
-- flags: allow-oom
-- Takes back the runs of incarnations whose lease has ended, or of those with a name, a bounded number of incarnations,
-- and forgets these. Answers how many runs, whether there are more, and whether there are batches that somebody opens,
-- or has left.

local MOST = 8

local dead, taken = {}, 0
if args.numbers then
    -- In a cluster: those that died, in all partitions; in the first one, which says that, if they did (`ended`).
    for _, number in ipairs(args.numbers) do
        local lease = args.ended and call('ZSCORE', P .. 'lease', number)
        if not lease or tonumber(lease) <= now then
            dead[#dead + 1] = number
        end
    end
elseif args.name then
    local workers = call('HGETALL', P .. 'workers')
    for i = 1, #workers, 2 do
        if unpacked(workers[i + 1]).name == args.name then
            dead[#dead + 1] = tonumber(workers[i])
        end
    end
    table.sort(dead)
else
    dead = call('ZRANGEBYSCORE', K.lease, '-inf', now, 'LIMIT', 0, MOST)
end
for i = 1, math.min(#dead, MOST) do
    taken = taken + take_back(tonumber(dead[i]), args.judged and args.judged[tostring(dead[i])])
end
flush()
local batches_left = call('EXISTS', P .. 'opening') == 1
return pack({ runs = taken, more = #dead >= MOST, batches = batches_left, numbers = args.numbers and dead or nil })
