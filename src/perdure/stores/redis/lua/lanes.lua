-- uses: core
-- flags: no-writes
-- The lanes: {name, workflow} of each.

local found, lanes = {}, call('HGETALL', K.lanes)
for i = 1, #lanes, 2 do
    found[#found + 1] = { lanes[i], unpacked(lanes[i + 1]).workflow }
end
return pack(found)
