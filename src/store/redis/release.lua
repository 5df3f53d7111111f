local session, order, lease, term, channel = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
KEY, INFO = KEYS[5], KEYS[6]
local since, lock, last, has_key = remember(), lock(), last(), has_key(session)
-- Late, and of an earlier leadership than this one.
if last.session == session and last.order > tonumber(order) then
  return { 'not held' }
end
local mine = lock and lock.session == session
local open = last.session == session and not last.released
local forgotten = unknown_for(since, last, lease) > 0 and term > math.max(lock and lock.term or 0, last.term)
if not (mine or open or forgotten) then
  -- The tree is dead, however its leadership ended.
  if has_key then
    free_key()
  end
  return { 'not held' }
end
local ended = math.max(term, mine and lock.term or 0, last.term)
keep({
  session = session, term = ended, ends = now, lease = tonumber(lease), order = tonumber(order), released = true,
  after = last.after, revoked = last.revoked,
})
if has_key then
  free_key()
end
if mine then
  call('DEL', LOCK, RECORD)
end
-- Without the permission to publish, standbys look when the lease would have ended.
redis.pcall('PUBLISH', channel, session)
return { 'released' }
