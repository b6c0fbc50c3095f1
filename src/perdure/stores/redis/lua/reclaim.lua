-- library: changes
-- flags: allow-oom
-- Takes back the runs of incarnations whose lease has ended, or of those with a name, a bounded number of incarnations,
-- and forgets these. Answers how many runs, when the first lease ends that is left, whether there are more incarnations,
-- whether there are chores, and whether there are batches that somebody opens, or has left. When it comes to it only at
-- the time `by`, or later, it takes back nothing.

local MOST = 8

local dead = {}
local late = args.by and now >= args.by
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
elseif not late then
    dead = call('ZRANGEBYSCORE', K.lease, '-inf', now, 'LIMIT', 0, MOST)
end
for i = 1, math.min(#dead, MOST) do
    local number = string.format('%.0f', dead[i])
    -- One that is dismissed already is being taken back.
    if args.judged or call('HEXISTS', K.takes, number) == 1 then
        take_back(number, args.judged and args.judged[number])
    end
end
local runs = taken
flush()
local first = call('ZRANGE', K.lease, 0, 0, 'WITHSCORES')
return pack({
    runs = runs, more = #dead > MOST or (not args.name and #dead == MOST), numbers = args.numbers and dead or nil,
    late = late or nil, next_at = tonumber(first[2]),
    chores = call('EXISTS', K.chores) == 1, batches = call('EXISTS', P .. 'opening') == 1,
})
