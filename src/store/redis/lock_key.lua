-- The lock of other programs. ARGV[1]: look, take, confirm, regain or let go.
local KEY, INFO = KEYS[1], KEYS[2]
local what, session, term, lease, record = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

-- A value names a leadership: the session and the term.
local mine = session .. ' ' .. (ARGV[3] or '')
-- What a leader writes that found the key gone: it has lost, and no other program may begin before its tree is dead.
local lost = mine .. ' lost'
-- A leader asks. It has lost what it does not hold, whatever else is wrong with the keys.
local leads = what == 'confirm' or what == 'regain'

-- The term of the leadership of this session that the value names. Nil: it names none.
local function term_of(value)
  if value and session ~= '' and string.sub(value, 1, #session) == session then
    return tonumber(string.match(value, '^ (%d+)', #session + 1))
  end
end

local value, info = call('GET', KEY), ''
if INFO then
  info = call('GET', INFO)
end
local held = term_of(value)
if what == 'let go' then
  -- Zero: any term, where a claim is given up.
  if held and (term == 0 or held <= term) then
    call('DEL', KEY)
    if INFO and info then
      call('DEL', INFO)
    end
  end
  return { 'done', {} }
end
-- A leader's own SET replaces what stands at INFO, whatever its type.
if value == nil or (info == nil and not leads) then
  return { 'strange', { value == nil and KEY or INFO } }
end
if value and not held then
  local left = call('PTTL', KEY)
  if left == -1 and not leads then
    return { 'eternal', {} }
  end
  return { 'held', { value, left == -1 and '' or string.format('%.0f', math.max(left, 0)), info or '' } }
end
if what == 'look' then
  return { 'done', {} }
end
-- This request is late: the same candidate leads again.
if held and held > term then
  return { 'lost', {} }
end
-- This request may come after the key was let go, so it takes nothing.
if what == 'confirm' and not value then
  return { 'lost', {} }
end
if what == 'regain' or (what == 'confirm' and value ~= mine) then
  call('SET', KEY, lost, 'PX', lease)
  return { 'lost', {} }
end
if INFO then
  call('SET', INFO, record, 'PX', lease)
end
call('SET', KEY, mine, 'PX', lease)
return { 'done', {} }
