-- library: reads
-- flags: no-writes
-- What a worker owns, in parts, from a cursor. Answers the next cursor, which is "0" at the end, and of each run its id,
-- the part of its token that is not the worker, and its number.

local PART = 100

local scanned = call('SSCAN', P .. 'owned:' .. args.worker, args.cursor, 'COUNT', PART)
local found = {}
for _, id in ipairs(scanned[2]) do
    local run = find(id)
    if run and run.s.low then
        found[#found + 1] = { id, run.s.low, run.s.seq }
    end
end
return pack({ scanned[1], found })
