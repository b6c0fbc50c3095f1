-- The states of runs.

-- Takes a run to another state, with all that lies on the way: the one place where a state changes.
-- `wake` is when its timer is due.
local function move(run, state, wake)
    local s = change(run)
    local was = s.state
    if was == 'running' and state ~= 'running' then
        srem(key_of(s.worker, 'owned:'), run.id)
        if s.why then
            call('SREM', P .. 'stop:' .. s.worker, run.id)
        end
        s.worker, s.low = nil, nil
    end
    if s.wake and s.wake ~= wake then
        zrem(K.timer, run.id)
    end
    if state == 'running' then
        sadd(key_of(s.worker, 'owned:'), run.id)
        if s.why then
            call('SADD', P .. 'stop:' .. s.worker, run.id)
        end
    end
    if wake and s.wake ~= wake then
        zadd(K.timer, wake, run.id)
        new_timer = new_timer and math.min(new_timer, wake) or wake
    end
    s.wake, s.state = wake, state
    if was ~= state then
        if was then
            count(run.fact.lane, was, -1)
        end
        count(run.fact.lane, state, 1)
    end
    local group = run.fact.group_name and group_of(run)
    if not group then
        if state == 'queued' and not s.place then
            s.place = own_place(run)
        end
        follow(run)
    elseif state == 'queued' then
        if s.held == 'rate' then
            s.held = nil
        end
        join_group(run, group)
    elseif state == 'running' then
        regroup(run, group)
    else
        leave_group(run, group)
    end
end
