-- library: reads
-- flags: allow-oom
-- Forgets a schedule; the runs that it made stay. Answers whether there was one.

call('ZREM', K.slots, args.name)
return pack(call('HDEL', K.schedules, args.name) == 1)
