-- uses: core reading
-- A run, as clients see it.

local run = find(args.run_id)
return pack(show_all({ run }))
