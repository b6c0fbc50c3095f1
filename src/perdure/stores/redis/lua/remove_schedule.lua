-- uses: core
-- flags: allow-oom
-- Forgets a schedule; the runs that it made stay. Answers whether there was one.

call('ZREM', P .. 'slots', args.name)
return pack(call('HDEL', P .. 'schedules', args.name) == 1)
