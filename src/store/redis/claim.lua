local session, order, lease, tail, record = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
KEY, INFO = KEYS[5], KEYS[6]
local since, lock, last = remember(), lock(), last()
local unknown = unknown_for(since, last, lease)
if lock and lock.session ~= session then
  return held(lock, unknown)
end
local taken = taken(session, unknown)
if taken then
  return taken
end
-- Even a lock of our own may be an old one here, whose successor's lock was forgotten.
if unknown > 0 then
  return { 'unknown', number(unknown), number(last.term) }
end
if last.session == session and last.order >= tonumber(order) then
  -- This very request was sent twice, if nothing has happened since.
  if last.order == tonumber(order) and lock and lock.term == last.term and (not KEY or has_key(session)) then
    return { 'granted', number(lock.term), lock.since, number(math.max(0, last.after - now)), '', '1' }
  end
  return { 'stale' }
end
-- Gone before its time and not released: it was deleted by hand, and its tree may live until then. That is kept: we
-- may release, or ask again, before it is over.
if not lock and last.session ~= session and not last.released then
  last.after = math.max(last.after, last.ends)
end
local term = number(math.max(now, last.term + 1, lock and lock.term + 1 or 0))
lead(session, order, lease, tail, record, term, 0, number(now), last)
return { 'granted', term, number(now), number(math.max(0, last.after - now)), last.session, last.released and '1' or '0' }
