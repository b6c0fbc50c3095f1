-- Pushing: a run that is just made goes to a worker that waits for one, claimed for it, so that it does not have to come
-- for it. A worker that has free slots after an exchange, and listens, is put down in :parked with their number; whoever
-- starts a run may use them up. Until the worker has said that it got a push (`got`), each exchange brings it again: a
-- message that is lost delays a run, and nothing else.
--
-- :parked is a hash of {slots, serial} (packed) by worker, :pushes one of how many pushes each ever got, :pushed:WORKER one
-- of the ids of runs by the number of the push. A push has its token in the serial of the exchange that parked the worker,
-- behind those of its claims; with at most MOST_FREE of them for each time that it is parked no two have the same.

local FIRST_PUSH, MOST_FREE = 128, 64
local park_worker, push, unknown_pushes

do
local CANDIDATES = 3 -- How many parked workers are looked at.
local LONGEST_PUSHED = 65536 -- Bytes of an input: a server cuts connections off for which messages pile up.

local function push_channel(worker)
    return P .. 'push:' .. worker
end

-- Parks a worker with so many free slots, or, unless it was not parked, not any more.
function park_worker(worker, serial, slots, was_parked)
    if slots > 0 then
        call('HSET', K.parked, worker, pack({ slots = math.min(slots, MOST_FREE), serial = serial }))
    elseif was_parked then
        call('HDEL', K.parked, worker)
    end
end

-- A push as its worker gets it; `v` tells code of another version what to make of it.
local function shown_push(run, number, serial)
    reset_kinds()
    run.number = FIRST_PUSH + number % FIRST_PUSH
    return { v = 1, push = number, serial = serial, claim = show(run), kinds = kinds }
end

-- Gives a ready run to a worker that waits, if there is one; returns whether it did. Where there are limits, rates or
-- sessions to look at, or others that come first, or a long input, it is left to the next exchange.
function push(run)
    local fact = run.fact
    if not run.ready or fact.session or run.s.size > LONGEST_PUSHED then
        return false
    end
    local candidates = call('HRANDFIELD', K.parked, CANDIDATES, 'WITHVALUES')
    if not candidates[1] or call('EXISTS', K.budget, K.rated) > 0 then
        return false
    end
    if not alone_in_ready(run) then
        return false
    end
    for at = 1, #candidates, 2 do
        local worker, parked = candidates[at], unpacked(candidates[at + 1])
        if call('SISMEMBER', P .. 'served:' .. worker, fact.lane) == 1
            and call('PUBSUB', 'NUMSUB', push_channel(worker))[2] > 0
        then
            local number = call('HINCRBY', K.pushes, worker, 1)
            claimer = { worker = tonumber(worker), serial = parked.serial, next = FIRST_PUSH + number % FIRST_PUSH }
            take(run)
            park_worker(worker, parked.serial, parked.slots - 1, true)
            call('HSET', P .. 'pushed:' .. worker, number, run.id)
            call('PUBLISH', push_channel(worker), pack(shown_push(run, number, parked.serial)))
            tell('status')
            return true
        end
    end
    return false
end

-- Forgets the pushes that a worker got, and returns its others, by their numbers.
function unknown_pushes(worker, got)
    local key = key_of(worker, 'pushed:')
    if #got > 0 then
        call('HDEL', key, unpack(got))
    end
    local found, pushes = {}, call('HGETALL', key)
    for i = 1, #pushes, 2 do
        local run = find(pushes[i + 1])
        if run and run.s.worker == worker and run.s.low % 256 >= FIRST_PUSH then
            found[#found + 1] = shown_push(run, tonumber(pushes[i]), math.floor(run.s.low / 256))
        else
            call('HDEL', key, pushes[i])
        end
    end
    return found
end
end
