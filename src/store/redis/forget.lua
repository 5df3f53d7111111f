-- After the fixed keys, those of its notes.
local session, order, lease, channel, fixed = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
KEY, INFO = fixed > 4 and KEYS[5] or nil, fixed > 5 and KEYS[6] or nil
local lock, last, has_key = lock(), last(), has_key(session)
if not lock or lock.session ~= session then
  return { 'not held' }
end
for index = fixed + 1, #KEYS do
  call('DEL', KEYS[index])
end
if has_key then
  free_key()
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
