-- library: changes
-- flags: allow-oom
-- Removes runs, one after the other, that are still as they were when they were found: {id, number in the order of
-- finishing, the latest time at which it may have ended, if that matters}. Passes over those that something keeps, and
-- stops when so many checkpoints and signals went with them, but not before the first one. Answers how many were removed,
-- how many it has taken up, and which of these ended too late.

local removed, taken, rows, young = 0, 0, 0, {}
for _, each in ipairs(args.runs) do
    local id, number, latest = unpack(each)
    local run = find(id)
    if run and run.s.finish == number and not run.s.kept then
        local keeper = keeper_of(run)
        if latest and run.s.done > latest then
            young[#young + 1] = id
        elseif keeper then
            pass_over(run, keeper)
        else
            rows = rows + (run.s.positions or 0) + (run.s.signals or 0)
            if rows > args.rows and removed > 0 then
                break
            end
            remove(run)
            removed = removed + 1
        end
    end
    taken = taken + 1
end

-- Batches that were opened with nothing, so that no run takes them along.
local more = false
if args.empty then
    local ids = call('ZRANGEBYSCORE', P .. 'empty', '-inf', now - args.empty, 'LIMIT', 0, args.limit)
    for _, id in ipairs(ids) do
        local batch = batch_of(id)
        if batch and batch.total == 0 then
            call('DEL', P .. 'batch:' .. id)
            batches[id] = false
        end
        call('ZREM', P .. 'empty', id)
    end
    more = #ids == args.limit
end
flush()
return pack({ removed = removed, taken = taken, young = young, more = more })
