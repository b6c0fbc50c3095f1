-- library: reads
-- flags: no-writes
-- The first runs of places, in the order in which they ended; a place is a lane and an outcome. Those of a part of the
-- places, from a cursor, which is "0" at the end; or of the one place that is asked for, behind a number. Answers of each
-- also how many runs there are, and when the first of them ended.

local FIRST, FOLLOWING = 16, 250 -- The most runs of each of some places, and of one.
local PLACES = 100 -- About so many places are looked at.

local function look(lane, state, after, most)
    local key = P .. 'fin:' .. lane .. ':' .. state
    local rows = call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    if #rows == 0 then
        return nil
    end
    local runs = {}
    for i = 1, #rows, 2 do
        runs[#runs + 1] = { tonumber(rows[i + 1]), rows[i] }
    end
    return {
        lane = lane, state = state, workflow = lane_of(lane).workflow, total = call('ZCOUNT', key, after, '+inf'),
        done = find(rows[1]).s.done, runs = runs,
    }
end

local found, cursor = {}, '0'
if args.lane then
    found[1] = look(args.lane, args.state, '(' .. args.after, FOLLOWING)
else
    -- There is a count for each place that has runs.
    local scanned = call('HSCAN', K.counts, args.cursor, 'COUNT', PLACES)
    cursor = scanned[1]
    for i = 1, #scanned[2], 2 do
        local field = scanned[2][i]
        local colon = string.find(field, ':', 1, true)
        local state = string.sub(field, 1, colon - 1)
        if FINAL[state] then
            found[#found + 1] = look(string.sub(field, colon + 1), state, '-inf', FIRST)
        end
    end
end
return pack({ now = now, number = in_time.now(), cursor = cursor, places = found })
