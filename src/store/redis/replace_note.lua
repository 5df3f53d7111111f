local NOTE, expected, draft, lasts = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local text = call('GET', NOTE)
-- No note of ours is empty: an empty word stands for nothing.
if text == '' then
  error('LEADERRUN-FOREIGN-1')
end
if (text or '') ~= expected then
  return { 'other' }
end
if draft == '' then
  call('DEL', NOTE)
elseif lasts == '' then
  call('SET', NOTE, draft)
else
  call('SET', NOTE, draft, 'PX', lasts)
end
return { 'replaced' }
