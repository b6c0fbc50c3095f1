-- library: reads
-- flags: no-writes
-- The incarnations whose lease has not ended.

local live = {}
local leases = call('ZRANGEBYSCORE', K.lease, '(' .. now, '+inf', 'WITHSCORES')
for i = 1, #leases, 2 do
    local number = leases[i]
    local worker = unpacked(call('HGET', K.workers, number))
    worker.id, worker.lease_until = tonumber(number), tonumber(leases[i + 1])
    worker.running = call('SCARD', P .. 'owned:' .. number)
    worker.owned_sessions = call('SCARD', P .. 'sessions:' .. number)
    worker.versions = next(worker.versions or {}) and worker.versions or nil
    live[#live + 1] = worker
end
return pack(live)
