local term, channel = tonumber(ARGV[1]), ARGV[2]
local lock, last = lock(), last()
if not lock or lock.foreign or lock.term ~= term then
  return { 'not held' }
end
if lock.left == -1 then
  error('LEADERRUN-ETERNAL')
end
-- As a lock that is deleted by hand leaves it: not released, so the next leader waits until then. If only the lock was
-- left, what it tells is written down.
local known = last.session == lock.session and last.term == lock.term
keep({
  session = lock.session, term = lock.term, ends = math.max(known and last.ends or 0, now + lock.left),
  lease = math.max(last.lease, lock.left), order = known and last.order or 0, released = false,
  after = last.after, revoked = lock.term,
})
call('DEL', LOCK, RECORD)
-- Without the permission to publish, standbys look when the lease would have ended.
redis.pcall('PUBLISH', channel, lock.session)
return { 'released' }
