-- Parks runs: each is put down at the runs that it waits for, so that their ends wake it, and woken where something is true
-- already. Of many waits that goes on in rounds. What comes true meanwhile is not missed: of runs that a round comes to it
-- sees itself whether they have ended; signals, times and cancelling find the run by its state.

local park, begin_to_wait

do
local FEW = 4 -- So many are looked at at once, however much a script has done: a worker parks up to 64 runs in it.

-- Whether a condition is true; where it is not, the run is put down for it.
local function look_at_condition(run, kind, target)
    if kind == 'run' then
        local other = find(target)
        if not other or FINAL[other.s.state] then
            return true
        end
        call('SADD', P .. 'parked:' .. target, run.id)
        if not other.s.awaited then
            mark(other).awaited = true
            steps = steps - 1 -- As much again.
        end
    elseif kind ~= 'signal' then
        return false
    end
    steps = steps - 1
    return kind == 'signal' and first_signal(run, target) ~= nil
end

-- Goes through what a run waits for, from a part on, as far as this script may; returns where it is then, unless that was
-- all or the run was woken.
local function look_at_parts(run, at)
    local part = part_of(run, at)
    while part do
        if steps <= 0 and (run.s.much or #part > 2 * FEW) then
            return at
        end
        local conditions = run.s.much and unpacked(part) or part
        for i = 1, #conditions, 2 do
            if look_at_condition(run, conditions[i], conditions[i + 1]) then
                wake(run)
                return nil
            end
        end
        at = at + 1
        part = part_of(run, at)
    end
    return nil
end

function chore_kinds.park(id, chore)
    local run = find(id)
    steps = steps + 1 -- Which the chore itself has taken.
    chore.at = run and run.s.state == 'waiting' and look_at_parts(run, chore.at) or nil
    return not chore.at
end

-- `waits` has what clients see, the first of its times, whether something is true by the word of another partition,
-- its conditions, and whether all that is much.
function park(run, waits)
    wait_for(run, waits[1], waits[4], waits[5])
    keep_outcome(run, false)
    move(run, 'waiting', waits[2] or nil)
    run.is_true = waits[3]
end

-- Whether it has heard, while it was running, that a run of another partition is over.
local function has_heard(run)
    local heard = run.s.heard
    local conditions = heard and conditions_of(run) or NOTHING
    for at = 1, #conditions, 2 do
        if conditions[at] == 'away' and heard[conditions[at + 1]] then
            return true
        end
    end
    return false
end

-- A run that is parked, when all else is said.
function begin_to_wait(run)
    local s = run.s
    if s.state == 'waiting' then
        if run.is_true or (s.wake and s.wake <= now) or has_heard(run) then
            wake(run)
        else
            local at = look_at_parts(run, 1)
            if at then
                begin_chore('park', run.id, { at = at })
            end
        end
    end
end
end
