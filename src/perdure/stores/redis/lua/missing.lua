-- library: reads
-- flags: no-writes
-- Those of some ids that no run has.

local missing = {}
for _, id in ipairs(args) do
    if call('EXISTS', P .. 'run:' .. id) == 0 then
        missing[#missing + 1] = id
    end
end
return pack(missing)
