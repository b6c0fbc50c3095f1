-- uses: core
-- The store's time.

return pack(now)
