-- Which workers claim from which lanes: noted when either is new, and when lanes are paused.

local paused_scopes = {}

resets[#resets + 1] = function()
    if next(paused_scopes) then
        paused_scopes = {}
    end
end

local function is_paused(kind, name)
    local scope = kind .. ':' .. name
    if paused_scopes[scope] == nil then
        paused_scopes[scope] = paused_scope(kind, name)
    end
    return paused_scopes[scope]
end

-- Goes over a part of the lanes, each of which is so many steps, from a cursor, and does something with each; returns
-- whether those were the last.
local function over_lanes(chore, cost, each)
    local scanned = call('HSCAN', K.lanes, chore.cursor, 'COUNT', math.ceil((steps + 1) / cost))
    local lanes = scanned[2]
    for i = 1, #lanes, 2 do
        each(lanes[i], unpacked(lanes[i + 1]))
    end
    steps, chore.cursor = steps - math.ceil(#lanes / 2 * cost), scanned[1]
    return chore.cursor == '0'
end

-- A pause: has the workers leave lanes that are paused now, and come back to those that are not any more.
function chore_kinds.lanes(_, chore)
    local workers, cost = all_workers(), 0.5
    for _ in pairs(workers) do
        cost = cost + 0.5
    end
    return over_lanes(chore, cost, function(name, lane)
        local paused = is_paused('namespace', '') or is_paused('queue', lane.queue) or is_paused('workflow', lane.workflow)
        if paused == (lane.paused or false) then
            return
        end
        lane.paused = paused or nil
        call('HSET', K.lanes, name, pack(lane))
        for number, worker in pairs(workers) do
            if paused then
                call('SREM', P .. 'served:' .. number, name, name .. '@', name .. '@' .. number)
            elseif serves(worker, lane) then
                serve(number, worker, name)
            end
        end
    end)
end

-- A new worker.
function chore_kinds.serve(number, chore)
    local worker = all_workers()[number]
    return not worker or over_lanes(chore, 0.25, function(name, lane)
        if not lane.paused and serves(worker, lane) then
            serve(number, worker, name)
        end
    end)
end
