-- What every function begins with: its arguments, the store's time, and the runs that it reads and writes.
--
-- The one key is the prefix of all keys, a hash tag in braces: all keys of one namespace (of one partition in a cluster)
-- lie in one slot. The first argument is the time by which the function goes, or "" for the server's; the second one holds
-- what is asked, packed; "spread" behind them says that runs are spread over partitions, and "durable" that the caller waits
-- until what its connection wrote last is durable. The server keeps what is defined here from one call to the next: so all
-- that belongs to a call is made anew by `begin_call`, or by what a module puts down in `resets`. What lies between a module's `do` and `end` is its own: a chunk of Lua has room for 200 locals.
--
-- A function reads a run once and writes it once, at its end. Nothing is written before all that can be refused has been
-- looked at, so one that fails has changed nothing.
--
-- Keys (behind the prefix):
--   :run:ID         hash    f what never changes (JSON), s what does (see below), i input, first (when it continued with
--                           another input), o outcome, st status, l labels (packed), w and c1… what it waits for (see
--                           waits.lua)
--   :cp:ID          hash    checkpoints by key (packed), :cpo:ID zset of their keys by position
--   :sig:ID         hash    signals that wait by position (packed), :sigid:ID hash position by id, :sigw:ID zset by position,
--                           :sign:ID zset by name, then position
--   :sigc:ID        hash    consumed ones by position (packed), :sigcid:ID hash position by id, :sigby:ID zset by the key of
--                           the checkpoint that took them, :sigold:ID hash by id of those from before the run continued
--   :kids:ID        zset    children by number; :parked:ID set of the runs that were parked for this one at last
--   :live :done     zset    runs by number: those that have not ended, those that have
--   :failed         zset    failed runs by number
--   :fin:LANE:STATE zset    ended runs by order of finishing
--   :ready:NAME     zset    the ready set: claimable runs by priority, then place. NAME is a lane, with the owner of the
--                           session behind it, where the run belongs to one: LANE@WORKER, or LANE@ for nobody's yet
--   :hot            set     names of ready sets that may have something
--   :lanes          hash    lanes (packed) with runs, by name; :served:WORKER set of the names that a worker claims from
--   :counts         hash    how many runs a lane has in a state, by STATE:LANE; and how many of the queued or scheduled ones
--                           wait for their group ("group", "group paused", "rate") or on a bench ("session")
--   :timer :due     zset    runs by the time at which they wake, by deadline
--   :owned:WORKER   set     the runs that it owns; :stop:WORKER set of those that are to be cancelled
--   :workers        hash    incarnations (packed) by number; :lease zset by the end of their lease
--   :group          hash    groups (packed); :line:G :early:G … zsets (see grouping.lua); :members:KEY zset of all
--                           runs of a group by number; :groups:KEY set of the names in :group of that key
--   :session        hash    sessions (packed); :seats:S :bench:S zsets; :idle zset; :sessions:WORKER set
--   :scope          hash    limits and pauses (packed) by KIND:NAME; :budget hash of those with a limit or a rate
--   :revisions      list    the changes (packed), latest first; :revisions:KIND:NAME those of one scope
--   :rated          hash    rates of groups (packed) by name; :debt hash what rates have counted, by KIND:NAME
--   :batch:ID       string  how far it is (packed); :items:ID zset of its runs by number; :empty zset of those that were
--                           opened without runs, by time; :opening zset, see staging.lua
--   :keepers        set     what keeps runs from being pruned; :kept:KEEPER set of these, see retaining.lua
--   :schedules      hash    schedules (packed); :slots zset by next slot; :made:NAME zset of its live runs by number
--   :unique:KEY     string  the live run that has it; :taken:KEY zset of all its runs by number
--   :label:KEY      zset    runs with a label by number
--   :n              hash    the numbers given out last
--   :durable        string  what a call writes so that its caller has something to wait for; gone after a second
-- And where runs are spread over partitions:
--   :partitions     string  how many there are (in the first one)
--   :where:ID       string  at the home of an id: the place of its run, PARTITION/N, if that is another one
--   :gone           hash    places by id where no run is any more, or none came to be: to be removed at the ids' homes
--   :mail           set     what runs of other partitions are to be told of (packed)

local spread -- whether this is one of several partitions
local P, now, args
local call, pack, unpacked -- which are not there yet when a server loads this
local resets = {}

-- Keys that are the same for many runs, made once: K.live is the key :live.
local K = {}
local function make_key(keys, name)
    local key = P .. name
    keys[name] = key
    return key
end

-- Names that are made of a lane and a word, made once: named_by_lane[word][lane] is word:lane.
local lane_name
do
local named_by_lane, lane_names = {}, 0
local MOST_NAMES = 10000

function lane_name(word, lane)
    local names = named_by_lane[word]
    if not names then
        names = {}
        named_by_lane[word] = names
    end
    local name = names[lane]
    if not name then
        lane_names = lane_names + 1
        if lane_names > MOST_NAMES then
            named_by_lane, lane_names, names = {}, 0, {}
        end
        name = word .. ':' .. lane
        names[lane] = name
    end
    return name
end
end

-- Keys of a worker, made once for the one that was asked for last, which it mostly is: a number becomes a text at the cost
-- of half a command.
local key_of
do
local prefix, number, keys

function key_of(worker, name)
    if worker ~= number or P ~= prefix then
        prefix, number, keys = P, worker, {}
    end
    local key = keys[name]
    if not key then
        key = P .. name .. worker
        keys[name] = key
    end
    return key
end
end

local function begin_call(keys, argv)
    call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
    local prefix = keys[1] .. ':'
    if prefix ~= P then
        P, K = prefix, setmetatable({}, { __index = make_key })
    end
    args, spread = unpacked(argv[2]), argv[3] == 'spread'
    if argv[#argv] == 'durable' then
        -- Also where another connection has done before what this asks for: its write is waited for as well.
        call('SET', P .. 'durable', 1, 'PX', 1000)
    end
    now = tonumber(argv[1])
    if not now then
        local time = call('TIME')
        now = time[1] * 1000 + math.floor(time[2] / 1000)
    end
    for i = 1, #resets do
        resets[i]()
    end
end

local FINAL = { succeeded = true, failed = true, cancelled = true }

-- Parts of a name, so joined that no two lists of parts make one name, whatever bytes are in them.
local function join(...)
    local parts = { ... }
    for i, part in ipairs(parts) do
        parts[i] = #part .. ':' .. part
    end
    return table.concat(parts)
end

-- The parts that `join` made a name of.
local function split(name)
    local parts, at = {}, 1
    while at <= #name do
        local _, colon, length = string.find(name, '^(%d+):', at)
        if not colon then
            break
        end
        parts[#parts + 1] = string.sub(name, colon + 1, colon + length)
        at = colon + length + 1
    end
    return parts
end

-- Queue and workflow of a lane, by its name.
local function lane_of(name)
    local parts = split(name)
    return { queue = parts[1], workflow = parts[2] }
end

-- Whether one text comes before another one by its bytes: what Lua compares itself goes by the locale of the server.
local function before(one, other)
    for at = 1, math.min(#one, #other) do
        local mine, theirs = string.byte(one, at), string.byte(other, at)
        if mine ~= theirs then
            return mine < theirs
        end
    end
    return #one < #other
end

local function order(number)
    return struct.pack('>I8', number)
end
