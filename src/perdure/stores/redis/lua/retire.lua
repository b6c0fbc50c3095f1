-- library: changes
-- flags: allow-oom
-- Ends an incarnation in good order. Answers what is left to be done.

retire(string.format('%.0f', args.worker))
local left = chores_left()
flush()
return pack(left or 0)
