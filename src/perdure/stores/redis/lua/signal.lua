-- library: changes
-- flags: allow-oom
-- Keeps a signal for its run, and wakes the run if it is parked for that name. One that was kept before changes nothing.

local run = find(args.run_id)
if not run then
    return refuse('missing')
end
local s = run.s
if s.signals and call('HEXISTS', P .. 'sigid:' .. run.id, args.id) == 1 then
    return pack(true)
end
if FINAL[s.state] then
    return refuse('ended', s.state)
end
change(run)
s.signals = (s.signals or 0) + 1
call('HSET', P .. 'sigid:' .. run.id, args.id, s.signals)
local signal = { id = args.id, name = args.name, body = args.body }
put_signal(run.id, s.signals, signal)
set_waiting(run.id, s.signals, signal, true)
local woken = s.state == 'running'
if s.state == 'waiting' then
    local conditions = conditions_of(run)
    for at = 1, #conditions, 2 do
        if not woken and conditions[at] == 'signal' and conditions[at + 1] == args.name then
            woken = wake(run)
        end
    end
end
if woken then
    tell('work')
    tell('status')
end
flush()
return pack(true)
