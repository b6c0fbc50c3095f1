-- library: exchanges
-- flags: allow-oom
-- Keeps a schedule; with the same timing it stays where it stands. What code declares leaves alone what was added at run
-- time. One that was paused elsewhere is so here, even if another one has put it meanwhile. Answers what is kept.

local kept = read_schedule(args.name)
if not kept then
    kept = { timing = args.timing, next_slot = args.next_slot }
elseif args.declared and not kept.declared then
    return pack({ show_schedule(args.name, kept) })
elseif kept.timing ~= args.timing then
    kept.timing, kept.next_slot = args.timing, args.next_slot
end
kept.spec, kept.declared = args.spec, args.declared
kept.paused = kept.paused or args.paused
put_schedule(args.name, kept)
tell('work') -- Workers that sleep may have to wake earlier than they meant to.
flush()
return pack({ show_schedule(args.name, kept) })
