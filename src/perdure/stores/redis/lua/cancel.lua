-- library: changes
-- flags: allow-oom
-- Ends a run that is not running, and asks for the end of one that is; so with its descendants, if they are to follow.
-- Answers the state that the run has now, and what is left to be done.

local run = find(args.run_id)
if not run then
    return refuse('missing')
end
if args.children then
    stop_family(run.id, args.reason, args.body)
else
    stop(run, args.reason, args.body)
end
local state, left = run.s.state, chores_left()
flush()
return pack({ state = state, left = left })
