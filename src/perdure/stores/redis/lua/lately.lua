-- library: reads
-- flags: no-writes
-- How many runs of some lanes have ended after `since`: halves the ended runs until it finds where that begins.

local rows = {}
for _, name in ipairs(args.lanes) do
    local ended = 0
    for state in pairs(FINAL) do
        local key = P .. 'fin:' .. name .. ':' .. state
        local all = call('ZCARD', key)
        local low, high = 0, all
        local function late(at)
            return find(call('ZRANGE', key, at, at)[1]).s.done > args.since
        end
        if all > 0 and not late(all - 1) then
            low = all
        end
        while low < high do
            local middle = math.floor((low + high) / 2)
            if late(middle) then
                high = middle
            else
                low = middle + 1
            end
        end
        ended = ended + all - low
    end
    if ended > 0 then
        local lane = lane_of(name)
        rows[#rows + 1] = { lane.queue, lane.workflow, '', true, 'ended', ended }
    end
end
return pack(rows)
