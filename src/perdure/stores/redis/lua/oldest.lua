-- uses: core
-- flags: no-writes
-- In a cluster: for each policy how many runs its places have, and their numbers in the order of finishing, of the first
-- ones; and the number at which a run has that ended just now.

local found = {}
for i, places in ipairs(args.policies) do
    local total, first = 0, {}
    for _, place in ipairs(places) do
        local key = P .. 'fin:' .. place[1] .. ':' .. place[2]
        total = total + call('ZCARD', key)
        local rows = call('ZRANGE', key, 0, args.limit - 1, 'WITHSCORES')
        for j = 2, #rows, 2 do
            first[#first + 1] = tonumber(rows[j])
        end
    end
    table.sort(first)
    found[i] = { total, first }
end
return pack({ in_time.now(), found })
