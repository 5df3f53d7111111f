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
return answer
