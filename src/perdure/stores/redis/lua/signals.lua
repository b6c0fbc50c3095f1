-- library: reads
-- flags: no-writes
-- A page of the signals that wait at a run, in order of position, and whether there are more.

local run = find(args.run_id)
if not run then
    return pack({ {}, false })
end
local found, more = waiting_signals(run, args.after, args.limit)
return pack({ found, more })
