-- library: reads
-- flags: allow-oom
-- Says in which format the namespace is kept; an empty one is given that of the caller.

local known = call('HGET', K.n, 'format')
if not known then
    known = args.format
    call('HSET', K.n, 'format', known)
end
return pack(tonumber(known))
