-- library: changes
-- flags: allow-oom
-- In a cluster: what became of starts whose runs are here, or are nowhere: none is made. Answers as `enqueue` does.

local answers = {}
for i, start in ipairs(args.starts) do
    local run = find(start.id)
    answers[i] = run and existed(run, start)
        or places.elsewhere(start, start.place or call('GET', P .. 'where:' .. start.id) or '')
    places.give_up(start)
end
flush()
return pack(answers)
