-- library: reads
-- flags: no-writes
-- The store's time.

return pack(now)
