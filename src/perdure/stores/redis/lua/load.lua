-- library: reads
-- flags: no-writes
-- A run, as clients see it.

local run = find(args.run_id)
return pack(show_all({ run }))
