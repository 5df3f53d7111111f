-- The lock of other programs. ARGV[1]: look, take, confirm or let go.
local KEY, INFO = KEYS[1], KEYS[2]
local what, session, lease, record = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- What a leader writes that found the key gone: it has lost, and no other program may begin before its tree is dead.
local lost = session .. ' lost'
local value, info = call('GET', KEY), ''
if INFO then
  info = call('GET', INFO)
end
if value == nil or info == nil then
  return { 'strange', value == nil and KEY or INFO }
end
local is_mine = value == session or value == lost
if value and not is_mine and what ~= 'let go' then
  local left = call('PTTL', KEY)
  return left == -1 and { 'eternal' } or { 'held', value, math.max(left, 0), info or '' }
end
if what == 'let go' and is_mine then
  call('DEL', unpack(KEYS))
elseif what == 'confirm' and value ~= session then
  call('SET', KEY, lost, 'PX', lease)
  return { 'lost' }
elseif what == 'take' or what == 'confirm' then
  if INFO then
    call('SET', INFO, record, 'PX', lease)
  end
  call('SET', KEY, session, 'PX', lease)
end
return { 'done' }
