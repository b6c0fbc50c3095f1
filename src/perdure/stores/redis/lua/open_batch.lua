-- library: changes
-- Makes all runs of a batch and its callback; or nothing, when one of them is there as another one. Answers for each start
-- 0 when its run was made, as asked, and otherwise what became of it.

local id, starts, callback = args.batch, args.starts, args.callback
local batch = batch_of(id)
if batch and batch.opening then
    return refuse('opening')
end
if batch then
    local kind, what = other_batch(batch, #starts, callback and callback.id)
    if kind then
        return refuse(kind, what)
    end
end
local misplaced_id, place = places.first_misplaced(starts)
if not misplaced_id and callback and not batch then
    misplaced_id, place = places.first_misplaced({ callback })
end
if misplaced_id then
    return refuse('misplaced', misplaced_id, place)
end
local conflict = conflicting(starts, not batch and callback, not batch and id)
if conflict then
    return refuse('conflict', conflict)
end

local answers = {}
if batch then
    for i, start in ipairs(starts) do
        answers[i] = { id = start.id, existed = true, same = true }
    end
    return pack(answers)
end
batch = new_batch(#starts, callback and callback.id)
put_batch(id, batch)
for i, start in ipairs(starts) do
    answers[i] = begin(start)
    places.give_up(start)
end
if callback then
    make_callback(id, batch, callback)
elseif #starts == 0 then
    call('ZADD', P .. 'empty', now, id)
end
tell('work')
flush()
return pack(answers)
