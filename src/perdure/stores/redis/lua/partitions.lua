-- library: reads
-- flags: allow-oom
-- Over how many partitions the runs are spread: what was said first stands.

call('SETNX', P .. 'partitions', args.partitions)
return pack(tonumber(call('GET', P .. 'partitions')))
