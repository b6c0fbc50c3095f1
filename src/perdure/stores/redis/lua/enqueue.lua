-- uses: core holding starting
-- Makes runs, in order. Answers for each 0 when it was made, as asked, and otherwise what became of it.

local answers = {}
for i, start in ipairs(args) do
    answers[i] = begin(start)
end
if made_ready then
    tell('work')
end
flush()
return pack(answers)
