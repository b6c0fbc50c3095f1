-- library: reads
-- flags: no-writes
-- Failed runs by workflow and cause, each with the latest that ended, and where to go on.

look_for(args.query)
local groups, found = {}, {}
local at = walk(math.huge, function(run)
    local s = run.s
    local key = join(run.fact.workflow, s.cause or '')
    local group = groups[key]
    if not group then
        group = { workflow = run.fact.workflow, cause = s.cause or '', runs = 0, finish = -1 }
        groups[key] = group
        found[#found + 1] = group
    end
    group.runs = group.runs + 1
    if s.finish > group.finish then
        group.finish, group.last_at, group.example = s.finish, s.done, run.id
    end
end)
return pack({ causes = found, at = at })
