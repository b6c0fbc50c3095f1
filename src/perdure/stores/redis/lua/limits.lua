-- library: changes
-- flags: no-writes
-- What is stored for scopes, with how much of it is used.

local running, found = running_lanes(), {}
local scopes = call('HGETALL', K.scope)
for i = 1, #scopes, 2 do
    local kind, name = string.match(scopes[i], '^(%l+):(.*)$')
    found[#found + 1] = show_scope(kind, name, unpacked(scopes[i + 1]), running)
end
return pack(found)
