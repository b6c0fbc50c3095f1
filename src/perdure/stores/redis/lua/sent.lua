-- library: reads
-- flags: allow-oom
-- In a cluster: mail that has arrived is removed.

for _, each in ipairs(args) do
    call('SREM', P .. 'mail', pack(each))
end
return pack(true)
