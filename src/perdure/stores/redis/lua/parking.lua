-- Parks runs: each is put down at the runs that it waits for, so that their ends wake it, and woken where something is true
-- already. Of many waits that goes on in rounds. What comes true meanwhile is not missed: of runs that a round comes to it
-- sees itself whether they have ended; signals, times and cancelling find the run by its state.

local park, begin_to_wait

do
local FEW = 4 -- So many are looked at at once, however much a script has done: a worker parks up to 64 runs in it.

-- Goes through what a run waits for, from a condition on, as far as this script may; returns where it is then, unless that
-- was all or the run was woken.
local function look_at_conditions(run, at)
    local conditions = conditions_of(run)
    local few = #conditions <= 2 * FEW
    while conditions[at] do
        if steps <= 0 and not few then
            return at
        end
        local kind, target = conditions[at], conditions[at + 1]
        local is_true = false
        if kind == 'run' then
            local other = find(target)
            is_true = not other or FINAL[other.s.state]
            if not is_true then
                call('SADD', P .. 'parked:' .. target, run.id)
                if not other.s.awaited then
                    change(other).awaited = true
                    steps = steps - 1 -- As much again.
                end
            end
            steps = steps - 1
        elseif kind == 'signal' then
            is_true = first_signal(run, target) ~= nil
            steps = steps - 1
        end
        if is_true then
            wake(run)
            return nil
        end
        at = at + 2
    end
    return nil
end

function chore_kinds.park(id, chore)
    local run = find(id)
    steps = steps + 1 -- Which the chore itself has taken.
    chore.at = run and run.s.state == 'waiting' and look_at_conditions(run, chore.at) or nil
    return not chore.at
end

-- `waits` has what clients see (JSON), the first of its times, whether something is true by the word of another partition,
-- and conditions.
function park(run, waits)
    wait_for(run, waits[1], waits[4])
    keep_outcome(run, false)
    move(run, 'waiting', waits[2] or nil)
    run.is_true = waits[3]
end

-- Whether it has heard, while it was running, that a run of another partition is over.
local function has_heard(run)
    local conditions, heard = conditions_of(run), run.s.heard
    for at = 1, heard and #conditions or 0, 2 do
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
            local at = look_at_conditions(run, 1)
            if at then
                begin_chore('park', run.id, { at = at })
            end
        end
    end
end
end
