-- library: reads
-- flags: no-writes
-- Counts children of runs, a bounded number. Asked for with a list of {id, number behind which to go on}. Answers how many
-- there are, how many of them have not ended, and which have children themselves; and where to go on.

local MOST = 100

local found = { runs = 0, live = 0, parents = {}, rest = {} }
for _, each in ipairs(args) do
    local left = MOST - found.runs
    local theirs = left > 0 and call('ZRANGEBYSCORE', P .. 'kids:' .. each[1], '(' .. each[2], '+inf',
        'WITHSCORES', 'LIMIT', 0, left) or {}
    for i = 1, #theirs, 2 do
        local run = find(theirs[i])
        found.runs = found.runs + 1
        found.live = found.live + (FINAL[run.s.state] and 0 or 1)
        if call('EXISTS', P .. 'kids:' .. run.id) == 1 then
            found.parents[#found.parents + 1] = run.id
        end
    end
    if #theirs == 2 * left then
        found.rest[#found.rest + 1] = { each[1], tonumber(theirs[#theirs]) or each[2] }
    end
end
return pack(found)
