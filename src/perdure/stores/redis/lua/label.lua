-- library: changes
-- Sets labels of a run; an empty value removes one.

local run = find(args.run_id)
if not run then
    return refuse('missing')
end
local packed = call('HGET', P .. 'run:' .. run.id, 'l')
local old, new, number = packed and unpacked(packed) or {}, {}, 0
for key, value in pairs(old) do
    new[key] = value
end
for key, value in pairs(args.labels) do
    new[key] = value ~= '' and value or nil
end
for _ in pairs(new) do
    number = number + 1
end
if number > args.most then
    return refuse('labels', number)
end
for key, value in pairs(old) do
    if new[key] ~= value then
        zrem(label_key(key, value), run.id)
    end
end
for key, value in pairs(new) do
    if old[key] ~= value then
        zadd(label_key(key, value), run.s.seq, run.id)
    end
end
keep(run, 'l', number > 0 and pack(new))
flush()
return pack(true)
