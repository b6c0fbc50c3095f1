-- library: reads
-- flags: allow-oom
-- In a cluster: has runs of other partitions told of the end, or the removal, of runs of this one. Answers for each
-- whether it is over already.

local answers = {}
for i, each in ipairs(args) do
    local run = find(each.target)
    answers[i] = not run or FINAL[run.s.state] or false
    if not answers[i] then
        call('SADD', P .. 'parked:' .. run.id, string.format('\0%.0f:', each.partition) .. each.waiter)
        mark(run).awaited = true
    end
end
flush()
return pack(answers)
