-- library: changes
-- flags: allow-oom
-- In a cluster: wakes runs that are parked for runs of other partitions which are over. One that is running keeps it in
-- mind until its next settle: it may be about to park.

for _, each in ipairs(args) do
    local run = find(each.waiter)
    local state = run and run.s.state
    if state == 'waiting' then
        if waits_for(run, 'away', each.target, each.hash) then
            wake(run)
        end
        tell('work')
    elseif state == 'running' then
        local heard = run.s.heard or {}
        heard[each.target] = true
        mark(run).heard = heard
        tell('work')
    end
end
flush()
return pack(true)
