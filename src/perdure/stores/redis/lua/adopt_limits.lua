-- library: changes
-- flags: allow-oom
-- In a cluster: has a partition go by what holds for a scope, as the first one keeps it, unless it knows of a later
-- change. Answers what holds, with how much of it is used.

local old, new = read_scope(args.kind .. ':' .. args.name) or {}, args.kept
if (old.revision or 0) < new.revision then
    apply(args.kind, args.name, old, new, args.partitions)
end
return tell_scope(args.kind, args.name)
