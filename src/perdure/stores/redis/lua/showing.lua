-- Claims as workers get them, with all that they need to go on: lists, and a map for what few have. What claims have in
-- common is told once, as their kind.

local kinds = {}
local reset_kinds, ended_of, reason, show

do
local kind_numbers = {}

function reset_kinds()
    if kinds[1] then
        kinds, kind_numbers = {}, {}
    end
end
resets[#resets + 1] = reset_kinds

local function kind_of(fact)
    local number = kind_numbers[fact]
    if not number then
        number = #kinds
        kind_numbers[fact] = number
        kinds[number + 1] = {
            fact.workflow, fact.queue, fact.version or '', fact.group or '', fact.session or '', fact.parent or false,
        }
    end
    return number
end

function ended_of(run)
    local outcome = run.outcome
    if outcome == nil then
        outcome = call('HGET', K['run:'] .. run.id, 'o')
    end
    return { id = run.id, state = run.s.state, body = outcome or nil }
end

function reason(s)
    return { reason = s.why, deadline = s.over or false }
end

-- What few claims have; nil when there is nothing of it.
local function more_of(run, labels)
    local s = run.s
    local shown = {
        crashes = s.crashes, cut_off = s.cut, deadline = s.due, cancelling = s.why and reason(s) or nil,
        labels = labels and unpacked(labels) or nil,
    }
    if s.positions then
        shown.checkpoints, shown.more_checkpoints = checkpoints_of(run, 0, BOUNDS.page)
    end
    if s.signals then
        shown.signals, shown.more_signals = waiting_signals(run, 0, BOUNDS.page)
    end
    if s.much then
        shown.waits = waits_of(run) -- So many that whoever claims it has to look at them.
        return shown
    end
    local conditions, bytes = s.on or NOTHING, 0
    for at = 1, #conditions, 2 do
        local kind, target = conditions[at], conditions[at + 1]
        local other = kind == 'run' and find(target)
        if kind == 'away' or other == nil then
            local which = kind == 'away' and 'away' or 'missing'
            shown[which] = shown[which] or {}
            table.insert(shown[which], target)
            shown.waits = s.waits
        elseif other and FINAL[other.s.state] then
            local ended = not shown.unread and ended_of(other)
            bytes = bytes + #(ended and ended.body or '')
            local which = ended and (not shown.ended or bytes <= BOUNDS.page_bytes) and 'ended' or 'unread'
            shown[which] = shown[which] or {}
            table.insert(shown[which], which == 'ended' and ended or target)
        end
    end
    return shown
end

function show(run)
    local s, fields = run.s, run.fields
    if not run.input then
        local found = call('HMGET', K['run:'] .. run.id, 'i', 'l')
        run.input, run.labels = found[1], found[2]
    end
    local input, labels = run.input, run.labels
    if fields then
        input, labels = fields.i or input, fields.l or labels
    end
    local claim = { run.id, run.number, kind_of(run.fact), input, s.made, s.attempt or 1 }
    if labels or s.crashes or s.cut or s.due or s.why or s.positions or s.signals or s.waits or s.much then
        local more = more_of(run, labels)
        claim[7] = next(more) and more -- An empty map would become a list.
    end
    return claim
end
end
