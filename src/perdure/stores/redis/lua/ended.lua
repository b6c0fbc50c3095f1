-- library: reads
-- flags: no-writes
-- Those of some runs that have ended, with their outcomes, a page of them. Their states are looked at without reading the
-- whole of them. Answers also how many it has looked at.

local BYTES = 512 * 1024

local ended, bytes = {}, 0
for i, id in ipairs(args) do
    local found = call('HMGET', P .. 'run:' .. id, 's', 'o')
    local state = found[1] and STATES[string.byte(found[1])]
    if state and FINAL[state] then
        bytes = bytes + #(found[2] or '')
        if #ended > 0 and bytes > BYTES then
            return pack({ ended, i - 1 })
        end
        ended[#ended + 1] = { id = id, state = state, body = found[2] or nil }
    end
end
return pack({ ended, #args })
