-- Entries at the homes of ids, of a cluster: where the runs are that are elsewhere.

-- Says where the run of each is, or is to be made: "" for here, or the place that its entry has. One that has no entry, or
-- the one that was found wrong (`was`), is to be made in the partition `to`.
local function claim_places(items, here)
    local answers = {}
    for i, each in ipairs(items) do
        local key = P .. 'where:' .. each.id
        local place = call('GET', key)
        if call('EXISTS', P .. 'run:' .. each.id) == 1 then
            answers[i] = ''
        elseif place and place ~= each.was then
            answers[i] = place
        elseif each.to == here then
            call('DEL', key)
            answers[i] = ''
        else
            answers[i] = string.format('%.0f/%.0f', each.to, next_number('place'))
            call('SET', key, answers[i])
        end
    end
    flush()
    return pack(answers)
end
