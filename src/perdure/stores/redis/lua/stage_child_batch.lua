-- library: changes
-- flags: allow-oom
-- As stage_batch does it, for a run: those go on where memory is full.

return stage_batch()
