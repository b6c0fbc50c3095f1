-- library: changes
-- flags: allow-oom
-- Sets what holds for a scope from now on, if it differs; what is declared stands back behind what was ever set. Answers
-- what holds.

local old = read_scope(args.kind .. ':' .. args.name) or {}
if not (args.declared and old.chosen) and not (old.chosen and equal_limits(args.limits, old)) then
    local new = limits_of(args.limits)
    new.chosen, new.paused = true, old.paused
    revise(args.kind, args.name, old, new, args.who)
end
return tell_scope(args.kind, args.name)
