-- library: changes
-- flags: no-writes
-- In a cluster: what decides which of the runs of incarnations are blamed that died. Asked for with what was answered
-- before, by number, until all cursors are "0"; they begin as "".

for number, judged in pairs(args) do
    if judged.cursor ~= '0' and steps > 0 then
        suspect(number, judged)
    end
end
return pack(args)
