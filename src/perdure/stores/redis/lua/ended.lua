-- uses: core
-- flags: no-writes
-- Those of some runs that have ended, with their outcomes.

local ended = {}
for _, id in ipairs(args) do
    local run = find(id)
    if run and FINAL[run.s.state] then
        local outcome = call('HGET', P .. 'run:' .. id, 'o')
        ended[#ended + 1] = { id = id, state = run.s.state, body = outcome or nil }
    end
end
return pack(ended)
