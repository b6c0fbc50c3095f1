-- library: reads
-- flags: no-writes
-- The changes of all scopes, or of one, latest first.

local found = {}
local key = args.scope and 'revisions:' .. args.scope or 'revisions'
for i, packed in ipairs(call('LRANGE', P .. key, 0, args.limit - 1)) do
    found[i] = unpacked(packed)
end
return pack(found)
