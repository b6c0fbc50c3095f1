-- library: reads
-- flags: no-writes
-- A page of the signals that wait at a run, in order of position.

local run = find(args.run_id)
return pack(run and waiting_signals(run, args.after, args.limit) or {})
