-- Opening of batches: by clients, and by runs, which go on where memory is full.

local open_batch, stage_batch

do
    -- Why a batch can't be opened that is there, for `refuse`.
    local function other_batch(batch, items, callback)
        if batch.items ~= items then
            return 'items', batch.items
        elseif batch.callback ~= callback then
            return 'callback', batch.callback or false
        end
    end

    local function new_batch(items, callback)
        return { items = items, total = 0, succeeded = 0, failed = 0, cancelled = 0, callback = callback }
    end

    function open_batch()
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
    end

    function stage_batch()
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
    end
end
