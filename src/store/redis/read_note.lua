local NOTE = KEYS[1]
local text = call('GET', NOTE)
if not text then
  return { 'nothing' }
end
-- No note of ours is empty.
if text == '' then
  error('LEADERRUN-FOREIGN-1')
end
return { 'text', text, call('PTTL', NOTE) }
