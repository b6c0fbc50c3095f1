-- uses: core holding starting
-- Begins an incarnation, with a lease from now, and ties it to the lanes that it serves. Answers its number, which in a
-- cluster the first partition gives, and the others are told.

local number = args.number or call('HINCRBY', K.n, 'worker', 1)
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
