local since, lock, last = known_since(), lock(), last()
local unknown = since and unknown_for(since, last, ARGV[1]) or 0
local answer = { 'free', '', number(unknown) }
if lock then
  answer = held(lock, unknown)
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
