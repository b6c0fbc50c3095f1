-- library: changes
-- flags: allow-oom
-- Queues runs that a worker owns by our word and not by its own, unless they are on their way to it or it has them no
-- more: a list of {id, the part of the token that is not the worker}.

local on_their_way = {}
for _, id in ipairs(call('HVALS', P .. 'pushed:' .. args.worker)) do
    on_their_way[id] = true
end
for _, each in ipairs(args.runs) do
    local run = find(each[1])
    if run and run.s.worker == args.worker and run.s.low == each[2] and not on_their_way[run.id] then
        change(run).cut = nil
        move(run, 'queued')
        tell('work')
        tell('status')
    end
end
flush()
return pack(true)
