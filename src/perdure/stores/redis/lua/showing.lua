-- Claims as workers get them, with all that they need to go on.

local function ended_of(run)
    local outcome = call('HGET', P .. 'run:' .. run.id, 'o')
    if run.fields and run.fields.o ~= nil then
        outcome = run.fields.o
    end
    return { id = run.id, state = run.s.state, body = outcome or nil }
end

local function reason(s)
    return { reason = s.why, deadline = s.over or false }
end

local function show(each)
    local run = each.run
    local s, fact = run.s, run.fact
    if not run.input and not (run.fields and run.fields.i) then
        run.input, run.labels = unpack(call('HMGET', P .. 'run:' .. run.id, 'i', 'l'))
    end
    local labels = run.fields and run.fields.l or run.labels
    local claim = {
        id = run.id, number = each.number, workflow = fact.workflow, queue = fact.queue,
        input = run.fields and run.fields.i or run.input,
        attempt = s.attempt, crashes = s.crashes, cut_off = s.cut, created_at = s.made, deadline = s.due,
        parent = fact.parent, cancelling = s.why and reason(s) or nil,
        group = fact.group, session = fact.session, version = fact.version,
        labels = labels and unpacked(labels) or nil,
    }
    if s.positions then
        claim.checkpoints = checkpoints_of(run.id, 0, args.page + 1)
    end
    if s.signals then
        claim.signals = waiting_signals(run, 0, args.page + 1)
    end
    for _, wait in ipairs(s.waits or {}) do
        if wait.away then
            claim.away = claim.away or {}
            table.insert(claim.away, { wait.key, wait.target })
        elseif wait.what == 'run' then
            local other = find(wait.target)
            if not other then
                claim.missing = claim.missing or {}
                table.insert(claim.missing, wait.key)
            elseif FINAL[other.s.state] then
                claim.ended = claim.ended or {}
                table.insert(claim.ended, ended_of(other))
            end
        end
    end
    return claim
end
