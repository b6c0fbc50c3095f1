-- library: reads
-- flags: no-writes
-- A page of a run's checkpoints, in order of position, and whether there are more; or the one of a key.

if args.key then
    local packed = call('HGET', P .. 'cp:' .. args.run_id, args.key)
    return pack({ packed and { unpacked(packed) } or {}, false })
end
local run = find(args.run_id)
if not run then
    return pack({ {}, false })
end
local found, more = checkpoints_of(run, args.after, args.limit)
return pack({ found, more })
