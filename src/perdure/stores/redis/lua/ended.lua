-- library: reads
-- flags: no-writes
-- Those of some runs that have ended, with their outcomes. Their states are looked at without reading the whole of them.

local ended = {}
for _, id in ipairs(args) do
    local found = call('HMGET', P .. 'run:' .. id, 's', 'o')
    local state = found[1] and STATES[string.byte(found[1])]
    if state and FINAL[state] then
        ended[#ended + 1] = { id = id, state = state, body = found[2] or nil }
    end
end
return pack(ended)
