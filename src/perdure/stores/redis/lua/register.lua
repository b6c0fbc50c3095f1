-- library: changes
-- flags: allow-oom
-- Begins an incarnation, with a lease from now, and ties it to the lanes that it serves. Answers its number: the time, or
-- the one after the last. So no number comes again, though what the server knew of the last ones is gone: it was emptied,
-- or a replica that had not heard of them took over. In a cluster the first partition gives it, and the others are told.
-- Also answers what is left to be done.

local number = args.number or set_number('worker', math.max(now, last_number('worker') + 1))
local worker = args
worker.number = nil
worker.started_at = now
call('HSET', K.workers, number, pack(worker))
call('ZADD', K.lease, now + worker.lease, number)
call('HSET', K.takes, number, worker.sessions)
begin_chore('serve', string.format('%.0f', number), { cursor = '0' })
local left = chores_left()
flush()
return pack({ number = number, left = left })
