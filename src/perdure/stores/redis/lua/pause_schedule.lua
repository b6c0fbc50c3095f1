-- library: exchanges
-- flags: allow-oom
-- Keeps a schedule from firing, or lets it go on: from a slot, if that is later than where it stands, or never. Answers
-- what is kept, or nothing.

local kept = read_schedule(args.name)
if not kept then
    return pack({})
end
if args.paused then
    kept.paused = true
elseif kept.paused then
    kept.paused = nil
    kept.next_slot = kept.next_slot and args.next_slot and math.max(kept.next_slot, args.next_slot)
    tell('work')
end
put_schedule(args.name, kept)
flush()
return pack({ show_schedule(args.name, kept) })
