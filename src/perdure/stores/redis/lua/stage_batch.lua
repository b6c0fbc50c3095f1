-- library: changes
-- Makes a part of the runs of a batch, which wait until it is open; it is there already when this is repeated. Answers as
-- opening it does. With `looks` it only says what would be refused.

return stage_batch()
