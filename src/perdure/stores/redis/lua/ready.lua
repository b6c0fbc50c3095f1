-- Whether scripts can be run: when a store is opened. Reads and writes nothing.

return 1
