-- Chores: what is too long for one script. What decides is done at once, by the script that begins a chore; the rest as
-- far as that script may go, and then in rounds: by whoever began it, and where that is gone, by the workers.
--
-- A chore has a kind and what it is of: two of the same are one, of which the later one stands.
--   :chores         zset    names of chores, KIND:OF, by the number of what began them
--   :chore          hash    what is left of each (packed), by name
--   :scan           hash    how far looks at large sets have come, by the name of the set

local STEPS = 60 -- The most runs that chores take up in one script.
local LOOKED_AT = 200 -- About so many of a worker's runs, or sessions, are looked at in one.

local chore_kinds = {} -- KIND -> function(of, chore): does a part, and returns whether that was all.
local steps -- how many runs more this script may take up
local number_of_chores, begin_chore, chores_left, go_on_with_chores
local part_of_set

do
local queue, queued, doing = {}, 1, false -- chores that this script has begun, or goes on with
local chore_number -- of the chores of this script

resets[#resets + 1] = function()
    steps, chore_number = STEPS, nil
    if queue[1] then
        queue, queued, doing = {}, 1, false
    end
end

-- The number by which whoever began chores knows when all are done.
function number_of_chores()
    chore_number = chore_number or call('HINCRBY', K.n, 'chore', 1)
    return chore_number
end

-- Does what is in the queue, as far as it may: chores that a chore begins come behind it.
local function do_chores()
    if doing then
        return
    end
    doing = true
    while queue[queued] and steps > 0 do
        local chore = queue[queued]
        steps = steps - 1
        if chore_kinds[chore.kind](chore.of, chore) then
            chore.done = true
            queued = queued + 1
        end
    end
    doing = false
end

-- Begins a chore.
function begin_chore(kind, of, chore)
    chore.kind, chore.of = kind, of
    queue[#queue + 1] = chore
    do_chores()
end

-- The number to wait for, when there is more to be done than this script did.
function chores_left()
    return queue[queued] and number_of_chores() or nil
end

-- Goes on with chores that were begun before, those first that were begun first, up to those of a number. Returns
-- whether there are more.
function go_on_with_chores(number)
    while not queue[queued] do
        local first = call('ZRANGE', K.chores, 0, 0, 'WITHSCORES')
        local its = tonumber(first[2])
        if not its or (number and its > number) then
            return false
        elseif steps <= 0 then
            return true
        end
        local chore = unpacked(call('HGET', K.chore, first[1]))
        if not chore_kinds[chore.kind] then
            return false -- That is for others.
        end
        chore_number, chore.known = its, true
        begin_chore(chore.kind, chore.of, chore)
        if chore.done then
            call('ZREM', K.chores, first[1])
            call('HDEL', K.chore, first[1])
        end
    end
    return true
end

-- What one look at a set brings: all of it, or, where that is much, what comes behind the last look. Returns also whether
-- there is more behind that. A look that is lost comes again when all the others have been.
function part_of_set(name)
    local key = P .. name
    if call('SCARD', key) <= LOOKED_AT then
        return call('SMEMBERS', key), false
    end
    local scanned = call('SSCAN', key, call('HGET', K.scan, name) or '0', 'COUNT', LOOKED_AT)
    local more = scanned[1] ~= '0'
    call('HSET', K.scan, name, scanned[1])
    return scanned[2], more
end

flushers[#flushers + 1] = function()
    for i = queued, #queue do
        local chore = queue[i]
        local name = chore.kind .. ':' .. chore.of
        if not chore.known then
            call('ZADD', K.chores, 'NX', number_of_chores(), name)
        end
        chore.known = nil
        call('HSET', K.chore, name, pack(chore))
    end
    if queue[1] then
        queue, queued = {}, 1
    end
end
end
