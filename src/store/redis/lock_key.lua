-- The lock of other programs. ARGV[1]: look, take, confirm or let go.
local KEY, INFO = KEYS[1], KEYS[2]
local session, lease, record = ARGV[2], ARGV[3], ARGV[4]

local function call(command, ...)
  local answer = redis.pcall(command, ...)
  if type(answer) == 'table' and answer.err then
    local key = ...
    if string.find(answer.err, 'WRONGTYPE', 1, true) then
      error('LEADERRUN-FOREIGN-' .. (key == KEY and 1 or 2))
    end
    if string.find(answer.err, 'NOPERM', 1, true) or string.find(answer.err, 'user executing the script', 1, true) then
      error('LEADERRUN-DENIED-' .. (string.find(answer.err, 'key', 1, true) and 'KEYS-' or '') .. command)
    end
    return redis.call(command, ...)
  end
  return answer
end

-- What a leader writes that found the key gone: it has lost, and no other program may begin before its tree is dead.
local lost = session .. ' lost'
local value, info = call('GET', KEY), INFO and call('GET', INFO) or ''
local is_mine = value == session or value == lost
if value and not is_mine and ARGV[1] ~= 'let go' then
  local left = call('PTTL', KEY)
  if left == -1 then
    error('LEADERRUN-ETERNAL')
  end
  return { 'held', value, math.max(left, 0), info or '' }
end
if ARGV[1] == 'let go' and is_mine then
  call('DEL', unpack(KEYS))
elseif ARGV[1] == 'confirm' and value ~= session then
  call('SET', KEY, lost, 'PX', lease)
  return { 'lost' }
elseif ARGV[1] == 'take' or ARGV[1] == 'confirm' then
  if INFO then
    call('SET', INFO, record, 'PX', lease)
  end
  call('SET', KEY, session, 'PX', lease)
end
return { 'done' }
