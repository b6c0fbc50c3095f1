-- library: changes
-- Makes all runs of a batch and its callback; or nothing, when one of them is there as another one. Answers for each start
-- 0 when its run was made, as asked, and otherwise what became of it.

return open_batch()
