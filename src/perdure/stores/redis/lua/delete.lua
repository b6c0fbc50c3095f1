-- library: changes
-- flags: allow-oom
-- Removes a run and its descendants. What has not ended is cancelled first, so that all that waits for its end goes on.
-- Answers how many runs, and what is left to be done. Of more runs than one script may take up nothing is removed before
-- they were `counted`; then the first one goes at once, and the others are as good as gone: a repeat tells of them.

local root = find(args.run_id)
if not root then
    local begun = call('HGET', K.chore, 'remove:' .. args.run_id)
    if not begun then
        return refuse('missing')
    end
    local left = tonumber(call('ZSCORE', K.chores, 'remove:' .. args.run_id))
    return pack({ removed = unpacked(begun).removed or 0, left = left })
end
if args.counted then
    remove_family(root, args.body, args.counted)
    local left = chores_left()
    flush()
    return pack({ removed = args.counted, left = left })
end
local ids = family(root.id)
if not ids then
    return pack({ uncounted = true })
end
local going, live = {}, {}
for _, id in ipairs(ids) do
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
local left = chores_left()
flush()
return pack({ removed = #going, left = left })
