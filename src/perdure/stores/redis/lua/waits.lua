-- What a run waits for: one that is parked, or one of a batch or a schedule that is not let in yet.
--
-- It is kept as clients see it (JSON, compressed where it is much), and as a list of what may come true: kind, target, kind,
-- target, … The kinds are "run", "signal", "batch", "schedule", and in a cluster "away", a run of another partition; a time
-- is the run's timer. Both stay with the run until its next settle: a claim tells of what it was parked for.
--
-- What is much, as whoever parks the run says, is kept beside its state, which each look at the run reads, and its
-- conditions in parts, of which a round unpacks one.

local waits_of, parts_of, conditions_of, put_waits

do
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

-- Its conditions in parts, which are packed where it waits for much.
function parts_of(run)
    if run.s.much then
        return unpacked(field(run, 'c'))
    end
    return { run.s.on }
end

function conditions_of(run)
    if not run.s.much then
        return run.s.on or NOTHING
    end
    local conditions, n = {}, 0
    for _, part in ipairs(parts_of(run)) do
        for _, each in ipairs(unpacked(part)) do
            n = n + 1
            conditions[n] = each
        end
    end
    return conditions
end

-- `conditions` are one list, or with `much` a list of packed ones.
function put_waits(run, waits, conditions, much)
    local s = change(run)
    if s.much then
        keep(run, 'w', false)
        keep(run, 'c', false)
    end
    s.waits, s.on, s.much = nil, nil, nil
    if much then
        keep(run, 'w', waits)
        keep(run, 'c', pack(conditions))
        s.much = true
    elseif waits then
        s.waits, s.on = waits, #conditions > 0 and conditions or nil
    end
end
end
