-- library: changes
-- flags: allow-oom
-- Goes on with a batch that nobody cares for any more: what is open is let in, what is not is dropped. Answers whether
-- there was one.

local id = call('ZRANGEBYSCORE', P .. 'opening', '-inf', now, 'LIMIT', 0, 1)[1]
if not id then
    return pack(false)
end
local batch = batch_of(id)
if not batch then
    call('ZREM', P .. 'opening', id)
elseif batch.opening then
    drop_part(id, batch)
elseif batch.admitted then
    let_part_in(id, batch)
end
flush()
return pack(true)
