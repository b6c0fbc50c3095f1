-- library: reads
-- In a cluster: the places of runs that clients start.

return claim_places(args.items, args.here)
