-- library: exchanges
-- Makes runs, in order, and pushes those to workers that wait for them. Answers for each 0 when it was made, as asked, and
-- otherwise what became of it; in a cluster also that it is not to be made here, with the place that is to be looked at.
-- Those that are `alike` come as ids and inputs, and are answered by nothing when all of them were made.

local starts, answers, left = args.starts, {}, false
local alike = args.alike
if alike and make_alike(alike.facts, alike.ids, alike.inputs) then
    starts, made_ready, left = {}, true, true
elseif alike then
    starts = {}
    for i, id in ipairs(alike.ids) do
        starts[i] = { id = id, facts = alike.facts, input = alike.inputs[i] }
    end
end
for i, start in ipairs(starts) do
    local run
    answers[i] = places.misplaced(start)
    if not answers[i] then
        answers[i], run = begin(start)
    end
    places.give_up(start)
    left = left or not run or not push(run)
end
if made_ready and left then
    tell('work')
end
flush()
return pack(answers)
