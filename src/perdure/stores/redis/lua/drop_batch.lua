-- library: changes
-- flags: allow-oom
-- Removes a part of the runs of a batch that is not open. Answers whether there are more.

local batch = batch_of(args.batch)
local more = batch and batch.opening and drop_part(args.batch, batch) or false
flush()
return pack(more)
