-- library: changes
-- Makes a part of the runs of a batch, which wait until it is open; it is there already when this is repeated. Answers as
-- opening it does. With `looks` it only says what would be refused.

local id, answers = args.batch, {}
local batch = batch_of(id)
if batch then
    local kind, what = other_batch(batch, args.items, args.callback)
    if batch.dropped then
        return refuse('dropped')
    elseif kind then
        return refuse(kind, what)
    end
end
local misplaced_id, place = places.first_misplaced(args.starts)
if misplaced_id then
    return refuse('misplaced', misplaced_id, place)
end
local conflict = conflicting(args.starts, nil, (not batch or batch.opening) and id)
if conflict then
    return refuse('conflict', conflict)
end
if args.looks then
    return pack({})
end
if not batch then
    batch = new_batch(args.items, args.callback)
    batch.opening = true
    put_batch(id, batch)
end
for i, start in ipairs(args.starts) do
    local there = find(start.id)
    if there and there.s.item == args.first + i and there.fact.batch == id then
        answers[i] = 0
    elseif there then
        answers[i] = { id = start.id, existed = true, same = true }
    elseif batch.opening then
        local answer, run = begin(start, { key = 'batch:' .. id, what = 'batch', target = id })
        if run then
            local due, deadline = begins(start)
            local s = mark(run)
            s.opens, s.item, s.later, s.timeout = due or 0, args.first + i, nil, nil
            set_deadline(run, deadline)
        end
        answers[i] = answer
    else
        answers[i] = { id = start.id, existed = true, same = true } -- It was deleted since.
    end
end
if batch.opening then
    expect(id)
end
flush()
return pack(answers)
