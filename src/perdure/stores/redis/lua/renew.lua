-- library: reads
-- flags: allow-oom
-- Extends a lease from now on, whether or not it ran out. Answers 1, or 0 when the incarnation is gone.

if not call('ZSCORE', K.lease, args.worker) then
    return 0
end
call('ZADD', K.lease, now + args.lease, args.worker)
return 1
