-- What a worker says of the runs that it owns. Each is said by its run, and the two parts of its token: worker, and what is
-- left. Saves and settles, of which there are many, come as one list each, a fixed number of values for each.

local WIDTH = 8 -- How many.

local refused = {}
local look_at, look_at_each, save_all, settle_all, seen_of

do

resets[#resets + 1] = function()
    if refused[1] then
        refused = {}
    end
end

local function is_settle(worker, low)
    local settles = args.settles
    for at = 1, settles and #settles or 0, WIDTH do
        if settles[at + 2] == low and settles[at + 1] == worker then
            return true
        end
    end
    return false
end

-- The run, if the token owns it; otherwise false, and the token is refused, unless it has settled the run, in this
-- exchange as before.
local function owned(id, worker, low)
    local run = find(id)
    if run then
        local s = run.s
        if s.low == low and s.worker == worker then
            return run
        elseif s.settled == low and s.settled_by == worker and is_settle(worker, low) then
            return false
        end
    end
    refused[#refused + 1] = { worker, low }
    return false
end

-- Puts the runs that are owned in the place of their ids.
function look_at(list, width)
    for at = 1, list and #list or 0, width do
        list[at] = owned(list[at], list[at + 1], list[at + 2])
    end
end

function look_at_each(list)
    for _, each in ipairs(list or NOTHING) do
        each.run = owned(each.id, each.worker, each.low)
    end
end

-- SAVES: run, token, key, outcome, the checkpoint (packed, see `keep_checkpoint`), the position of the signal that it takes
-- with it, the run that it makes.

-- Returns what came of runs that were to be made and were there.
function save_all(saves)
    local existing = {}
    for at = 1, saves and #saves or 0, WIDTH do
        local run, starts = saves[at], saves[at + 7]
        if run then
            local key, packed, keeps = saves[at + 3], saves[at + 5], true
            if starts then
                local answer = begin(starts)
                if answer ~= 0 and answer.existed then
                    existing[#existing + 1] = {
                        worker = saves[at + 1], low = saves[at + 2], key = key, id = answer.id, same = answer.same,
                    }
                    keeps = answer.same
                    if answer.id ~= starts.id then
                        local checkpoint = unpacked(packed .. pack('position', 0, 'saved_at', 0))
                        checkpoint.body = string.gsub(cjson.encode(answer.id), '\\/', '/')
                        checkpoint.position, checkpoint.saved_at = nil, nil
                        packed = pack(checkpoint)
                        packed = string.char(string.byte(packed) + 2) .. string.sub(packed, 2)
                    end
                end
            end
            if keeps then
                keep_checkpoint(run, key, saves[at + 4], packed)
                local position = saves[at + 6]
                if position == 0 then
                    give_back(run, key)
                elseif position then
                    consume(run, position, key)
                end
            end
        end
    end
    return existing
end

-- SETTLES: run, token, what becomes of it, the body, the cause of a failure, the delay, what it waits for (see parking.lua).

local function continue(run, input)
    local s = run.s
    drop_checkpoints(run)
    drop_consumed(run)
    if input then
        keep(run, 'first', first_input(run))
        keep(run, 'i', input)
        s.size = #input
    end
    s.attempt, s.crashes = nil, nil
    wait_for(run)
    keep_outcome(run, false)
    move(run, 'queued')
end

local function by_seq(one, other)
    return one.s.seq < other.s.seq
end

-- Settles runs in their order, so that it is known who of a group gets a slot first. Those that end finish in the order in
-- which they were said. Returns how many.
function settle_all(settles)
    local settled, n, ends, in_order, last = {}, 0, 0, true, -1
    for at = 1, settles and #settles or 0, WIDTH do
        local run = settles[at]
        if run and not run.settle then
            n = n + 1
            settled[n], run.settle = run, at
            in_order, last = in_order and run.s.seq > last, run.s.seq
            if FINAL[settles[at + 3]] then
                ends = ends + 1
                run.finish = ends
            end
        end
    end
    if n == 0 then
        return 0
    end
    local finished = ends > 0 and in_time.take('finish', ends) or 0
    if not in_order then
        table.sort(settled, by_seq)
    end
    local of_sessions, parked, stopping = false, {}, {}
    for i = 1, n do
        local run = settled[i]
        local at = run.settle
        local s, to, body = change(run), settles[at + 3], settles[at + 4]
        of_sessions = of_sessions or run.fact.session ~= nil
        s.settled_by, s.settled = settles[at + 1], settles[at + 2]
        if to ~= 'release' and not s.why then
            s.cut = nil
        end
        if FINAL[to] then
            finish(run, to, body, to == 'failed' and settles[at + 5] or nil, finished + run.finish)
        elseif s.why then
            move(run, 'queued')
            stopping[#stopping + 1] = run
        elseif to == 'park' then
            park(run, settles[at + 7] or NOTHING)
            parked[#parked + 1] = run
        elseif to == 'retry' then
            wait_for(run)
            s.attempt = (s.attempt or 1) + 1
            if body then
                keep_outcome(run, body)
            end
            retry_run(run, nil, settles[at + 6] > 0 and now + settles[at + 6] or nil)
        elseif to == 'continue' then
            continue(run, body)
        else
            move(run, 'queued')
        end
    end
    for _, run in ipairs(parked) do
        begin_to_wait(run)
    end
    for i = 1, n do
        settled[i].s.heard = nil
    end
    end_held(stopping, args.draining and string.format('%.0f', args.worker))
    if of_sessions then
        rest()
    end
    return n
end

-- WATCHES

-- What has come of a wait of a run that runs; nil when nothing has.
function seen_of(run, wait)
    local seen
    if wait.what == 'signal' then
        local signal = first_signal(run, wait.target)
        seen = signal and { signal = signal }
    elseif wait.what == 'run' then
        local other = find(wait.target)
        if not other then
            seen = { missing = true }
        elseif FINAL[other.s.state] then
            seen = { ended = ended_of(other) }
        end
    end
    if not seen and wait.at and wait.at <= now then
        seen = {}
    end
    return seen
end
end
