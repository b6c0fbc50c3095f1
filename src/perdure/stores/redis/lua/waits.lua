-- What a run waits for: one that is parked, or one of a batch or a schedule that is not let in yet.
--
-- It is kept as clients see it (JSON), and as a list of what may come true: kind, target, kind, target, … The kinds are
-- "run", "signal", "batch", "schedule", and in a cluster "away", a run of another partition; a time is the run's timer.
-- Both stay with the run until its next settle: a claim tells of what it was parked for.

local waits_of, conditions_of, put_waits

do
local LONG = 4096 -- Bytes of what is kept in the state, which each look at a run reads; what is longer lies beside it.

local function field(run, name)
    local kept = run.fields and run.fields[name]
    if kept == nil then
        kept = call('HGET', K['run:'] .. run.id, name)
    end
    return kept
end

-- As clients see it; nil when it waits for nothing.
function waits_of(run)
    return run.s.much and field(run, 'w') or run.s.waits
end

function conditions_of(run)
    if run.s.much and not run.conditions then
        run.conditions = unpacked(field(run, 'c'))
    end
    return run.conditions or run.s.on or NOTHING
end

function put_waits(run, waits, conditions)
    local s = change(run)
    if s.much then
        keep(run, 'w', false)
        keep(run, 'c', false)
    end
    s.waits, s.on, s.much, run.conditions = nil, nil, nil, nil
    if waits and #waits > LONG then
        keep(run, 'w', waits)
        keep(run, 'c', pack(conditions))
        s.much, run.conditions = true, conditions
    elseif waits then
        s.waits, s.on = waits, #conditions > 0 and conditions or nil
    end
end
end
