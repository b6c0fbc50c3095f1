-- library: changes
-- flags: allow-oom
-- Keeps a signal for its run, and wakes the run if it is parked for that name. One that was kept before changes nothing.

local run = find(args.run_id)
if not run then
    return refuse('missing')
end
local s = run.s
if knows_signal(run, args.id) then
    return pack(true)
end
if FINAL[s.state] then
    return refuse('ended', s.state)
end
add_signal(run, { id = args.id, name = args.name, body = args.body })
local woken = s.state == 'running' or (waits_for(run, 'signal', args.name, args.hash) and wake(run))
if woken then
    tell('work')
    tell('status')
end
flush()
return pack(true)
