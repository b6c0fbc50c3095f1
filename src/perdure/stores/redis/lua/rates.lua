-- Rates and limits as the claim reads them.
--
-- A rate is a bucket that holds `burst` runs and runs out by `count` of them in each `period`. `debt` is what is in it at
-- the time `at`, in parts of a run, of which `period` are one: so all numbers are whole (see perdure.budget.Meter).

local rates = {}

do
local budgets -- of the namespace, queues and workflows, by KIND:NAME; nil when there are none
local rated = {} -- of groups

resets[#resets + 1] = function()
    budgets = nil
    if next(rated) then
        rated = {}
    end
end

local ASTRAY = 60000 -- See perdure.budget.

local function debt_now(rate)
    return math.max(0, rate.debt - math.max(0, now - rate.at) * rate.count)
end

-- When a rate lets one more run begin, with so many before it.
function rates.opens_at(rate, behind)
    local over = debt_now(rate) - (rate.burst - 1 - behind) * rate.period
    if over <= 0 then
        return now
    end
    return math.max(now, rate.at) + math.ceil(over / rate.count)
end

-- Counts a run that begins.
function rates.spend(rate)
    rate.debt, rate.at, rate.spent = debt_now(rate) + rate.period, math.max(now, rate.at), true
end

local function read_budget(packed, scope)
    local budget = unpacked(packed)
    if budget.count then
        local debt = call('HGET', P .. 'debt', scope)
        debt = debt and unpacked(debt) or { 0, 0 }
        if debt[2] - now > ASTRAY then
            debt = { 0, now } -- The clock was far ahead then, and is right again.
        end
        budget.rate = {
            count = budget.count, period = budget.period, burst = budget.burst, debt = debt[1], at = debt[2],
            scope = scope,
        }
    end
    budget.left = budget.running
    return budget
end

-- Reads the limits and rates of the namespace, of queues and of workflows, with what is running.
function rates.read()
    local rows = call('HGETALL', K.budget)
    if #rows == 0 then
        return
    end
    budgets = {}
    local limited = false
    for i = 1, #rows, 2 do
        budgets[rows[i]] = read_budget(rows[i + 1], rows[i])
        limited = limited or budgets[rows[i]].left ~= nil
    end
    if limited then
        local running = call('HGETALL', K.counts)
        local function take(field, number)
            local lane = lane_of(string.sub(field, 9))
            for _, scope in ipairs({ 'namespace:', 'queue:' .. lane.queue, 'workflow:' .. lane.workflow }) do
                local budget = budgets[scope]
                if budget and budget.left then
                    budget.left = budget.left - number
                end
            end
        end
        for i = 1, #running, 2 do
            if string.sub(running[i], 1, 8) == 'running:' then
                take(running[i], tonumber(running[i + 1]))
            end
        end
        for lane, states in pairs(counted) do
            take('running:' .. lane, states.running or 0)
        end
    end
end

-- The budgets that a run of a lane has to keep to.
function rates.of_lane(lane)
    local found = {}
    if budgets then
        for _, scope in ipairs({ 'namespace:', 'queue:' .. lane.queue, 'workflow:' .. lane.workflow }) do
            found[#found + 1] = budgets[scope]
        end
    end
    return found
end

-- The rate of the group of a run, if it has one.
function rates.of_group(run)
    local name = run.fact.group
    if not name then
        return nil
    end
    if rated[name] == nil then
        local packed = call('HGET', K.rated, name)
        rated[name] = packed and read_budget(packed, 'group:' .. name).rate or false
    end
    return rated[name] or nil
end

-- Keeps what was spent.
function rates.note()
    local function note_rate(rate)
        if rate and rate.spent then
            rate.spent = nil
            call('HSET', P .. 'debt', rate.scope, pack({ rate.debt, rate.at }))
        end
    end
    for _, budget in pairs(budgets or {}) do
        note_rate(budget.rate)
    end
    for _, rate in pairs(rated) do
        note_rate(rate)
    end
end
end
