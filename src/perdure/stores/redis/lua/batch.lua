-- uses: core holding starting
-- How far a batch has come; false when there is none.

local batch = batch_of(args.batch)
return pack(batch and {
    total = batch.total, succeeded = batch.succeeded, failed = batch.failed, cancelled = batch.cancelled,
    callback = batch.callback,
})
