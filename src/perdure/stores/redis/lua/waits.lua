-- What a run waits for: one that is parked, or one of a batch or a schedule that is not let in yet.
--
-- It is kept as clients see it (JSON, compressed where it is much), and as a list of what may come true: kind, target, kind,
-- target, … The kinds are "run", "signal", "batch", "schedule", and in a cluster "away", a run of another partition; a time
-- is the run's timer. Both stay with the run until its next settle: a claim tells of what it was parked for.
--
-- What is much, as whoever parks the run says, is kept beside its state, which each look at the run reads, and its
-- conditions in parts by the hash of the target, of which a round unpacks one or two.

local waits_of, part_of, parts_of, joined, conditions_of, waits_for, put_waits

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

-- A part of its conditions, which is packed where it waits for much; nil when there is none.
function part_of(run, at)
    if run.s.much then
        return at <= run.s.much and field(run, 'c' .. at) or nil
    end
    return at == 1 and run.s.on or nil
end

function parts_of(run)
    local parts = {}
    repeat
        local part = part_of(run, #parts + 1)
        parts[#parts + 1] = part
    until not part
    return parts
end

-- All conditions of parts.
function joined(parts, much)
    if not much then
        return parts[1] or NOTHING
    end
    local conditions, n = {}, 0
    for _, part in ipairs(parts) do
        for _, each in ipairs(unpacked(part)) do
            n = n + 1
            conditions[n] = each
        end
    end
    return conditions
end

function conditions_of(run)
    return joined(parts_of(run), run.s.much)
end

-- Whether a run waits for that; `hash` is that of the target, which says in what part it is.
function waits_for(run, kind, target, hash)
    local much = run.s.much
    local part = part_of(run, much and hash % much + 1 or 1)
    local conditions = part and (much and unpacked(part) or part) or NOTHING
    for at = 1, #conditions, 2 do
        if conditions[at] == kind and conditions[at + 1] == target then
            return true
        end
    end
    return false
end

-- `conditions` are one list, or with `much` a list of packed ones.
function put_waits(run, waits, conditions, much)
    local s = mark(run)
    if s.much then
        keep(run, 'w', false)
        for at = 1, s.much do
            keep(run, 'c' .. at, false)
        end
    end
    s.waits, s.on, s.much = nil, nil, nil
    if much then
        keep(run, 'w', waits)
        for at, part in ipairs(conditions) do
            keep(run, 'c' .. at, part)
        end
        s.much = #conditions
    elseif waits then
        s.waits, s.on = waits, #conditions > 0 and conditions or nil
    end
end
end
