-- ARGV[1] says what to do: get, put or touch. KEYS[1] is the marker; the others are those of the documents.
local STORE = KEYS[1]
local FORMAT = '2'

local function number(value)
  -- tostring() would write a time in milliseconds as 1.7e+12.
  return string.format('%.0f', value)
end

local function field(text, name)
  return string.match(text, name .. ':([^\r\n]*)') or ''
end

local replication = call('INFO', 'replication')
if field(replication, 'role') == 'slave' then
  return redis.error_reply('READONLY this is a replica')
end
local server = call('INFO', 'server')
if field(server, 'redis_mode') == 'cluster' then
  return redis.error_reply('CROSSSLOT this is a node of a cluster')
end
-- The first part changes with every start of the server, the second with every promotion of a replica as well.
local run = field(server, 'run_id') .. ' ' .. field(replication, 'master_replid')
if run == ' ' then
  return redis.error_reply('NORUNID this server has none')
end

local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- The version of what is absent: which write of the marker it is since when nothing was forgotten.
local function absent()
  local marker = call('HMGET', STORE, 'write')
  return { 'absent', marker and marker[1] or '' }
end

-- A document: format, write, text, session, term, sequence, end. `place` is the field of the marker's hash where a led
-- mark is, and empty for all others, which have hashes of their own.
local function read(key, place)
  if place ~= '' then
    local kept = call('HMGET', key, place)
    if not kept then
      return { 'strange', 'it is not a hash' }
    elseif not kept[1] then
      return absent()
    end
    local write, text = string.match(kept[1], '^(%S+) (.*)$')
    return write and { FORMAT, write, text, '', '0', '0', '' } or { 'strange', 'its field ' .. place .. ' is not a led mark' }
  end
  local found = call('HMGET', key, 'format', 'write', 'text', 'session', 'term', 'sequence', 'ends')
  if not found then
    return { 'strange', 'it is not a hash' }
  elseif not found[1] then
    return call('EXISTS', key) == 0 and absent() or { 'strange', 'it has no format' }
  elseif found[1] ~= FORMAT then
    return { 'strange', 'its format is ' .. found[1] .. ', and this release reads ' .. FORMAT }
  end
  for index = 1, 7 do
    found[index] = found[index] or ''
  end
  return found
end

local function answer(status, documents)
  return { status, { number(now), run, documents } }
end

local function get()
  local documents = {}
  for index = 2, #KEYS do
    documents[index - 1] = read(KEYS[index], ARGV[index])
  end
  return answer('done', documents)
end

local function put()
  local key, place, write = KEYS[2], ARGV[2], ARGV[3]
  local over = { run = ARGV[4], write = ARGV[5], sequence = ARGV[6], ends = ARGV[7] }
  local text, session, term, sequence, lasts, channel = ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13]
  local found, ends = read(key, place), ''
  local refused = answer('refused', { found })
  if found[1] == 'strange' then
    return refused
  end
  -- This very request was sent twice. WAIT counts what this connection wrote, so it writes what stands once more.
  if found[1] == FORMAT and found[2] == write then
    if place ~= '' then
      call('HSET', key, place, write .. ' ' .. found[3])
    else
      call('HSET', key, 'write', write)
    end
    return answer('done', { found })
  end
  if run ~= over.run or found[2] ~= over.write then
    return refused
  end
  -- Where a lease was judged, it must not have been prolonged since.
  if over.sequence ~= '' and (found[6] ~= over.sequence or found[7] ~= over.ends) then
    return refused
  end
  if lasts == 'keep' then
    sequence, ends = found[6] or sequence, found[7] or ''
  elseif lasts ~= 'never' then
    ends = number(now + tonumber(lasts))
  end
  if place ~= '' then
    call('HSET', key, place, write .. ' ' .. text)
  else
    call('HSET', key, 'format', FORMAT, 'write', write, 'text', text, 'session', session, 'term', term,
      'sequence', sequence, 'ends', ends)
  end
  -- Without the permission to publish, standbys look when the lease would have ended.
  local unheard = channel ~= '' and type(redis.pcall('PUBLISH', channel, '')) == 'table'
  return answer(unheard and 'unheard' or 'done', { { FORMAT, write, text, session, term, sequence, ends } })
end

local function touch()
  local key, session, term, sequence, lease = KEYS[2], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
  local found, outcome = read(key, ''), 'refused'
  if found[1] == FORMAT and found[4] == session and found[5] == term then
    local ahead = tonumber(sequence) - (tonumber(found[6]) or 0)
    outcome = ahead < 0 and 'overtaken' or 'done'
    if ahead > 0 then
      found[6], found[7] = sequence, number(now + tonumber(lease))
    end
    -- Also if this very request was sent twice: see `put`.
    if ahead >= 0 then
      call('HSET', key, 'sequence', found[6], 'ends', found[7])
    end
  end
  local documents = { found }
  -- Not among the KEYS: the server refuses a whole script if it denies one of those. Whatever is wrong with these does the
  -- lease no harm: then fewer are shown.
  for index = 6, #ARGV do
    local is_read, also = pcall(read, ARGV[index], '')
    documents[#documents + 1] = is_read and also or nil
  end
  return answer(outcome, documents)
end

return ({ get = get, put = put, touch = touch })[ARGV[1]]()
