-- library: reads
-- flags: no-writes
-- Runs by filters, at most `most` of them, and so many bytes of their inputs and outcomes, and where to go on. `ids` asks
-- for no more than their ids, `given` are those that may be it.

local BYTES = 512 * 1024

look_for(args.query)
local total = count_all()
if total == 0 then
    return pack({ total = 0 })
elseif only_state == 'running' and not args.given then
    local workers = too_many_running()
    if workers then
        return pack({ crowded = workers })
    end
end
local found, bytes = {}, 0
local at = walk(args.most, function(run)
    found[#found + 1] = run
    if not args.ids then
        local key = K['run:'] .. run.id
        bytes = bytes + run.s.size + call('HSTRLEN', key, 'o') + (run.s.much and call('HSTRLEN', key, 'w') or 0)
    end
    return bytes > BYTES
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
