-- library: exchanges
-- flags: no-writes
-- All schedules.

local found, all = {}, call('HGETALL', K.schedules)
for i = 1, #all, 2 do
    found[#found + 1] = show_schedule(all[i], unpacked(all[i + 1]))
end
return pack(found)
