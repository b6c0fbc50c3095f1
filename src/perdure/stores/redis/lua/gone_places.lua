-- library: reads
-- flags: allow-oom
-- In a cluster: places where no run is any more. With `done` those are forgotten whose entries were removed. Answers a
-- list of {id, place}.

for _, each in ipairs(args.done or {}) do
    if call('HGET', P .. 'gone', each[1]) == each[2] then
        call('HDEL', P .. 'gone', each[1])
    end
end
local found, gone = {}, call('HSCAN', P .. 'gone', 0, 'COUNT', 500)[2]
for i = 1, #gone, 2 do
    found[#found + 1] = { gone[i], gone[i + 1] }
end
return pack(found)
