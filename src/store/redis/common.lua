-- Every script begins with this: which run of which server this is, and what it remembers. A read-only script passes
-- through here as well, so nothing is written but in functions.
local LOCK, LAST, RECORD, STORE = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- The lock of other programs, and what its holder says of itself there. Set by the scripts that take or show it.
local KEY, INFO

local function number(value)
  -- tostring() would write a time in milliseconds as 1.7e+12.
  return string.format('%.0f', value)
end

-- Says which command was denied, and whose key it is when something else has written it: not all servers do.
local function call(command, ...)
  local answer = redis.pcall(command, ...)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  end
  local said = answer.err
  if string.find(said, 'NOPERM', 1, true) or string.find(said, 'user executing the script', 1, true) then
    error('LEADERRUN-DENIED-' .. (string.find(said, 'key', 1, true) and 'KEYS-' or '') .. command)
  end
  if string.find(said, 'WRONGTYPE', 1, true) then
    local key = ...
    for index = 1, #KEYS do
      if KEYS[index] == key then
        error('LEADERRUN-FOREIGN-' .. index)
      end
    end
  end
  -- Once more, for an error in the server's own words.
  return redis.call(command, ...)
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
  error('LEADERRUN-CLUSTER')
end
-- The first part changes with every start of the server, the second with every promotion of a replica as well.
local run = field(server, 'run_id') .. ' ' .. field(replication, 'master_replid')
if run == ' ' then
  error('LEADERRUN-ANONYMOUS')
end

local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- Since when this run of this server is known to have forgotten nothing; nil when it is not known yet.
local function known_since()
  local marker = call('HMGET', STORE, 'run', 'since')
  local since = tonumber(marker[2])
  -- A clock that was set back says nothing about how long ago that was.
  if marker[1] == run and since and since <= now then
    return since
  end
  return nil
end

local function remember()
  local since = known_since()
  if not since then
    since = now
    call('HSET', STORE, 'run', run, 'since', number(since))
  end
  return since
end

local function lock()
  local text = call('GET', LOCK)
  if not text then
    return nil
  end
  local session, term, beat, since = string.match(text, '^(%S+) (%d+) (%d+) (%d+) ')
  return {
    text = text, left = call('PTTL', LOCK), foreign = not session,
    session = session, term = tonumber(term) or 0, beat = tonumber(beat) or 0, since = since,
  }
end

local function read_last(found)
  return {
    session = found[1] or '', term = tonumber(found[2]) or 0, ends = tonumber(found[3]) or 0,
    lease = tonumber(found[4]) or 0, order = tonumber(found[5]) or 0, released = found[6] == '1',
    after = tonumber(found[7]) or 0, revoked = tonumber(found[8]) or 0,
  }
end

-- Where the keys of the shard are gone, all at once, the copy tells.
local function last()
  local found = call('HMGET', LAST, 'session', 'term', 'until', 'lease', 'order', 'released', 'after', 'revoked')
  if not found[1] then
    local copy = call('HMGET', STORE, LAST)[1] or ''
    local words = { string.match(copy, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$') }
    found = words[1] and words or found
  end
  return read_last(found)
end

-- The copy is in a key that nobody deletes who deletes a shard; without that one the server has forgotten everything.
local function keep(last)
  local found = {
    last.session, number(last.term), number(last.ends), number(last.lease), number(last.order),
    last.released and '1' or '0', number(last.after), number(last.revoked),
  }
  call('HSET', STORE, LAST, table.concat(found, ' '))
  call('HSET', LAST, 'session', found[1], 'term', found[2], 'until', found[3], 'lease', found[4], 'order', found[5],
    'released', found[6], 'after', found[7], 'revoked', found[8])
end

-- For how long a lease may yet live that this run of the server does not know of.
local function unknown_for(since, last, lease)
  return math.max(0, since + math.max(lease, last.lease) - now)
end

-- Who stands in the way of whom: of a lock that is there.
local function held(lock, at_least)
  if lock.left == -1 then
    error('LEADERRUN-ETERNAL')
  end
  return { lock.foreign and 'foreign' or 'held', lock.text, number(math.max(lock.left, at_least)) }
end

-- Who stands in our way by holding the lock of other programs. Nil if that is nobody, or this session.
local function taken(session, at_least)
  local value = KEY and call('GET', KEY)
  if not value or value == session then
    return nil
  end
  local left = call('PTTL', KEY)
  if left == -1 then
    error('LEADERRUN-ETERNAL-KEY')
  end
  return { 'taken', value, number(math.max(left, at_least)), INFO and call('GET', INFO) or '' }
end

local function has_key(session)
  return KEY and call('GET', KEY) == session
end

local function free_key()
  call('DEL', KEY)
  if INFO then
    call('DEL', INFO)
  end
end

-- The lock comes last: should a permission be missing on the way, nobody holds anything.
local function lead(session, order, lease, tail, record, term, beat, since, last)
  call('SET', RECORD, record .. ',"term":' .. term .. '}', 'PX', lease)
  keep({
    session = session, term = tonumber(term), ends = now + lease, lease = tonumber(lease), order = tonumber(order),
    released = false, after = last.after, revoked = last.revoked,
  })
  if INFO then
    call('SET', INFO, record .. ',"term":' .. term .. '}', 'PX', lease)
  end
  if KEY then
    call('SET', KEY, session, 'PX', lease)
  end
  call('SET', LOCK, session .. ' ' .. term .. ' ' .. beat .. ' ' .. since .. ' ' .. tail, 'PX', lease)
end

-- What is to be shown of the shard: who holds it, or who may, and its last term.
local function look(since, lease)
  local lock, last = lock(), last()
  local unknown = since and unknown_for(since, last, lease) or 0
  local answer = { 'free', '', number(unknown) }
  local taken = not lock and taken(nil, unknown)
  if lock then
    answer = held(lock, unknown)
  elseif taken then
    return { taken[1], taken[2], taken[3], number(last.term), since and number(now - since) or '', '', taken[4] }
  elseif unknown > 0 then
    answer[1] = 'unknown'
  end
  answer[4] = number(last.term)
  answer[5] = since and number(now - since) or ''
  -- Both are written at one instant.
  if lock and last.session == lock.session and last.term == lock.term then
    answer[6] = number(math.max(0, last.lease - lock.left))
  end
  return answer
end
