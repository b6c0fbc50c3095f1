-- library: changes
-- flags: allow-oom
-- Opens a batch whose runs are there, and lets a part of them in. Answers whether there are more.

local id, callback = args.batch, args.callback
local batch = batch_of(id)
if not batch or batch.dropped then
    return refuse('dropped')
end
if batch.opening then
    local misplaced_id, place = places.first_misplaced({ callback })
    if misplaced_id then
        return refuse('misplaced', misplaced_id, place)
    end
    local conflict = conflicting({}, callback, id)
    if conflict then
        return refuse('conflict', conflict)
    end
    batch.opening, batch.admitted = nil, 0
    put_batch(id, batch)
    if callback then
        make_callback(id, batch, callback)
    end
end
local more = batch.admitted and let_part_in(id, batch) or false
if more then
    expect(id)
end
flush()
return pack(more)
