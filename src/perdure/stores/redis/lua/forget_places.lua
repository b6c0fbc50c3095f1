-- library: reads
-- flags: allow-oom
-- In a cluster, at the home of some ids: removes their entries, if they are as given.

for _, each in ipairs(args) do
    if call('GET', P .. 'where:' .. each[1]) == each[2] then
        call('DEL', P .. 'where:' .. each[1])
    end
end
return pack(true)
