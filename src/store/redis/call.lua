-- Says which command was denied: not all servers do. Nil: the key is of another type.
local function call(command, ...)
  local answer = redis.pcall(command, ...)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  end
  local said = answer.err
  if string.find(said, 'NOPERM', 1, true) or string.find(said, 'user executing the script', 1, true) then
    error('LEADERRUN-DENIED ' .. (string.find(said, 'key', 1, true) and 'the keys of ' or '') .. 'the command ' .. command)
  end
  if string.find(said, 'WRONGTYPE', 1, true) then
    return nil
  end
  -- Once more, for an error in the server's own words.
  return redis.call(command, ...)
end
