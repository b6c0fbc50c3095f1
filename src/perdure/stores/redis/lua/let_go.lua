-- library: changes
-- flags: allow-oom
-- Has runs looked at again that prune passed over, of those keepers that do not live any more: goes over a part of the
-- keepers from a cursor, and takes up a bounded number of runs. Answers the next cursor, which is "0" at the end,
-- and whether this part has to be gone over once more.

local MOST = 100

local scanned = call('SSCAN', P .. 'keepers', args.cursor, 'COUNT', MOST)
local more, left = false, MOST
for _, keeper in ipairs(scanned[2]) do
    local key = P .. 'kept:' .. keeper
    if not keeps(keeper) then
        local ids = call('SPOP', key, left)
        left = left - #ids
        for _, id in ipairs(ids) do
            local run = find(id)
            change(run).kept = nil
            zadd(P .. 'fin:' .. run.fact.lane .. ':' .. run.s.state, run.s.finish, id)
        end
        more = more or call('EXISTS', key) == 1
    end
    if call('EXISTS', key) == 0 then
        call('SREM', P .. 'keepers', keeper)
    end
end
flush()
return pack({ scanned[1], more })
