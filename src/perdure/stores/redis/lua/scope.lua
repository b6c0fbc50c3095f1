-- library: reads
-- flags: no-writes
-- In a cluster: what is kept for a scope, or for all, as other partitions adopt it: a list of {kind, name, kept}.

local found = {}
local scopes = call('HGETALL', P .. 'scope')
for i = 1, #scopes, 2 do
    local kind, name = string.match(scopes[i], '^(%l+):(.*)$')
    if not args.kind or (args.kind == kind and args.name == name) then
        found[#found + 1] = { kind, name, unpacked(scopes[i + 1]) }
    end
end
return pack(found)
