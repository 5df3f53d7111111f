-- After the first four, the keys of its notes.
local session, order, lease, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lock, last = lock(), last()
if not lock or lock.session ~= session then
  return { 'not held' }
end
for index = 5, #KEYS do
  call('DEL', KEYS[index])
end
call('DEL', LOCK, RECORD)
if math.max(lock.term, last.term) >= now then
  -- The server's clock is behind: the next term would not be higher.
  keep({
    session = session, term = math.max(lock.term, last.term), ends = now, lease = tonumber(lease),
    order = tonumber(order), released = true, after = 0, revoked = 0,
  })
else
  call('DEL', LAST)
  -- Who may not do this leaves an empty copy there, which says nothing.
  local denied = redis.pcall('HDEL', STORE, LAST)
  if type(denied) == 'table' and denied.err then
    call('HSET', STORE, LAST, '')
  end
end
-- Without the permission to publish, standbys look when the lease would have ended.
redis.pcall('PUBLISH', channel, session)
return { 'released' }
