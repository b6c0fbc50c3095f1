-- uses: core holding seating grouping moving starting ending working
-- flags: allow-oom
-- Ends an incarnation in good order: what it owns is queued again and not counted.

for _, run in ipairs(owned_runs(args.worker)) do
    change(run).cut = nil
    move(run, 'queued')
    tell('work')
    tell('status')
end
forget(args.worker)
flush()
return pack(true)
