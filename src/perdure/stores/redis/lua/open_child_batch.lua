-- library: changes
-- flags: allow-oom
-- As open_batch does it, for a run: those go on where memory is full.

return open_batch()
