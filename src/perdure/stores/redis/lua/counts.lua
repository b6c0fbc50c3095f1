-- library: reads
-- flags: no-writes
-- How many runs each lane has in each state.

local rows = {}
local counts = call('HGETALL', K.counts)
for i = 1, #counts, 2 do
    local colon = string.find(counts[i], ':', 1, true)
    local lane = lane_of(string.sub(counts[i], colon + 1))
    rows[#rows + 1] = { lane.queue, lane.workflow, string.sub(counts[i], 1, colon - 1), tonumber(counts[i + 1]) }
end
return pack(rows)
