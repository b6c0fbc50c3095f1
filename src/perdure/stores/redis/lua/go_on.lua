-- library: changes
-- flags: allow-oom
-- Goes on with chores, those that came first; with `number` up to those that this is of. Answers whether there are more,
-- and how many runs were taken back.

local more = go_on_with_chores(args.number)
local runs = taken
flush()
return pack({ more = more, runs = runs })
