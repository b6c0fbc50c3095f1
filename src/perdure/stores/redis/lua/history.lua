-- library: reads
-- flags: no-writes
-- A page of a run's checkpoints, in order of position; or the one of a key.

if args.key then
    local packed = call('HGET', P .. 'cp:' .. args.run_id, args.key)
    local found = {}
    if packed then
        found[1] = unpacked(packed)
    end
    return pack(found)
end
return pack(checkpoints_of(args.run_id, args.after, args.limit))
