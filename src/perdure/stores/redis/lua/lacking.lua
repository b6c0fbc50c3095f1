-- Which of some commands the user may not run, on keys and channels such as `name`. Nothing is run.

local function lacks(command, name)
    local first, second = string.match(command, '^([^|]+)|?(.*)$')
    -- With a name in two places, as the server looks for keys without asking whether they are all there: with fewer
    -- arguments than a command has it may crash.
    local known, may = pcall(redis.acl_check_cmd, first, second ~= '' and second or name, name)
    return known and not may
end

local function lacking(commands, name)
    local found = {}
    for _, command in ipairs(commands) do
        if lacks(command, name) then
            found[#found + 1] = command
        end
    end
    return found
end
