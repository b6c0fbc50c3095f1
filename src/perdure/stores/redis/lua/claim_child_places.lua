-- library: reads
-- flags: allow-oom
-- In a cluster: the places of runs that are made by runs and schedules, which go on where memory is full.

return claim_places(args.items, args.here)
