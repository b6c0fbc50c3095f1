-- uses: core holding seating grouping moving starting
-- flags: allow-oom
-- Begins an incarnation, with a lease from now, and ties it to the lanes that it serves. Answers its number: the time, or
-- the one after the last. So no number comes again, though what the server knew of the last ones is gone: it was emptied,
-- or a replica that had not heard of them took over. In a cluster the first partition gives it, and the others are told.

local number = args.number or set_number('worker', math.max(now, last_number('worker') + 1))
local worker = args
worker.number = nil
worker.started_at = now
call('HSET', K.workers, number, pack(worker))
call('ZADD', K.lease, now + worker.lease, number)
call('HSET', K.takes, number, worker.sessions)
local lanes = call('HGETALL', K.lanes)
for i = 1, #lanes, 2 do
    local lane = unpacked(lanes[i + 1])
    if not lane.paused and serves(worker, lane) then
        serve(number, worker, lanes[i])
    end
end
flush()
return pack(number)
