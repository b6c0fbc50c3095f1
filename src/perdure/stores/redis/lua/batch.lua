-- library: changes
-- flags: no-writes
-- How far a batch has come; false when there is none, or none that is open.

local batch = batch_of(args.batch)
return pack(batch and not batch.opening and {
    total = batch.total, succeeded = batch.succeeded, failed = batch.failed, cancelled = batch.cancelled,
    callback = batch.callback,
})
