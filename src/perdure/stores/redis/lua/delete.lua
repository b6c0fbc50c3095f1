-- uses: core holding seating grouping moving starting ending
-- flags: allow-oom
-- Removes a run and its descendants. What has not ended is cancelled first, so that all that waits for its end goes on.
-- Answers how many runs.

if not find(args.run_id) then
    return refuse('missing')
end
local going, live = {}, {}
for _, id in ipairs(family(args.run_id)) do
    local run = find(id)
    going[#going + 1] = run
    if not FINAL[run.s.state] then
        live[#live + 1] = run
    end
end
if #live > 0 and not args.force then
    return refuse('live', #live, #going)
end
for _, run in ipairs(live) do
    finish(run, 'cancelled', args.body)
    tell('work')
end
for _, run in ipairs(going) do
    remove(run)
end
flush()
return pack(#going)
