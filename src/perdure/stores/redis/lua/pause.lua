-- library: changes
-- flags: allow-oom
-- Keeps runs of a scope from beginning, or lets them again. Answers what holds.

local old = read_scope(args.kind .. ':' .. args.name) or {}
if (old.paused or false) ~= args.paused then
    local new = limits_of(old)
    new.chosen, new.paused = old.chosen, args.paused or nil
    revise(args.kind, args.name, old, new, args.who)
end
return tell_scope(args.kind, args.name)
