-- library: reads
-- flags: no-writes
-- In a cluster, at the home of some ids: where the run of each is: "" for here or nowhere, or its place.

local answers = {}
for i, id in ipairs(args) do
    answers[i] = call('EXISTS', P .. 'run:' .. id) == 0 and call('GET', P .. 'where:' .. id) or ''
end
return pack(answers)
