local session, order, lease, tail, record, term, beat, began =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
KEY, INFO = KEYS[5], KEYS[6]
local since, lock, last = remember(), lock(), last()
-- The orders of shards, whose keys are the other arguments: the server refuses a whole script if it denies one of its
-- KEYS. Whatever is wrong with a note does the lease no harm; who reads it by itself is told.
local answer = { 'renewed' }
for index = 9, #ARGV do
  local text = redis.pcall('GET', ARGV[index])
  local left = text and redis.pcall('PTTL', ARGV[index])
  if not text then
    left = 0
    text = ''
  elseif type(text) ~= 'string' or text == '' or type(left) ~= 'number' then
    left = 'unread'
    text = ''
  end
  answer[#answer + 1] = text
  answer[#answer + 1] = left
end
local mine = lock and lock.session == session
local key = KEY and call('GET', KEY)
local info = INFO and call('GET', INFO) or ''
local function prolong()
  if KEY and not key then
    -- Another program may have led meanwhile, so this leadership is lost, as if it had been revoked: should this answer
    -- not arrive, the next renewal must not find the key of this one. No other program may begin before its tree is dead.
    keep({
      session = session, term = term, ends = now + lease, lease = tonumber(lease), order = tonumber(order),
      released = false, after = last.after, revoked = term,
    })
    call('SET', KEY, session, 'PX', lease)
    if mine then
      call('DEL', LOCK, RECORD)
    end
    return { 'lost' }
  end
  if KEY and key ~= session then
    return { 'lost', 'taken', key, number(call('PTTL', KEY)), info }
  end
  lead(session, order, lease, tail, record, number(term), number(beat), mine and lock.since or began, last)
  return answer
end
if mine and lock.term == term then
  -- With its own order when this very request was sent twice.
  if lock.beat > beat or (lock.beat == beat and last.order ~= tonumber(order)) then
    return { 'overtaken' }
  end
  return prolong()
end
if mine and lock.term > term then
  return { 'overtaken' }
end
local foreign = lock and lock.foreign
if last.revoked == term then
  -- It is not forgotten, and did not just end: it was taken away.
elseif unknown_for(since, last, lease) > 0 then
  -- This run of the server may have forgotten this leadership, and has granted none. A session with a higher term than
  -- all that it remembers leads, or led: only the leader's tree lives, and its next renewal has the highest term.
  local known = math.max(lock and lock.term or 0, last.term)
  if not foreign and (known < term or (not lock and known == term and last.session == session and not last.released)) then
    return prolong()
  end
elseif not lock and last.session == session and last.term == term and not last.released and last.ends <= now then
  -- It ended by the server's clock, and nobody has taken it since.
  return prolong()
end
if key and key ~= session and not lock then
  return { 'lost', 'taken', key, number(call('PTTL', KEY)), info }
end
if lock then
  return { 'lost', lock.foreign and 'foreign' or 'held', lock.text, number(lock.left) }
end
return { 'lost' }
