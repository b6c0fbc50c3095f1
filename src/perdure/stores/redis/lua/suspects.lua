-- uses: core holding seating grouping moving starting ending working
-- flags: no-writes
-- In a cluster: what decides which of the runs of incarnations are blamed that died. Answers a list of {number, most
-- crashes, how many have so many, the last claim of these}.

local found = {}
for i, number in ipairs(args.numbers) do
    found[i] = { number, suspicion(owned_runs(string.format('%.0f', number))) }
end
return pack(found)
