-- library: reads
-- flags: no-writes
-- Runs by filters, at most `most` of them, and where to go on. `ids` asks for no more than their ids.

look_for(args.query)
local total = count_all()
if total == 0 then
    return pack({ total = 0 })
end
local found = {}
local at = walk(args.most, function(run)
    found[#found + 1] = run
end)
local told
if args.ids then
    told = { ids = {} }
    for i, run in ipairs(found) do
        told.ids[i] = run.id
    end
else
    told = show_all(found)
end
if not (query.parent or query.batch or query.group or query.cause or next(query.labels)) then
    told.total = total
end
told.at = at
return pack(told)
