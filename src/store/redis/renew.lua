local session, order, lease, tail, record, term, beat, began =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local since, lock, last = remember(), lock(), last()
local mine = lock and lock.session == session
local function prolong()
  lead(session, order, lease, tail, record, number(term), number(beat), mine and lock.since or began, last)
  return { 'renewed' }
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
if lock then
  return { 'lost', lock.foreign and 'foreign' or 'held', lock.text, number(lock.left) }
end
return { 'lost' }
