-- A note that something else has written is left out here, and read by itself.
local answers = {}
for index = 1, #KEYS do
  local read, text = pcall(call, 'GET', KEYS[index])
  if not read or text == '' then
    answers[index] = {}
  elseif text then
    answers[index] = { 'text', text, call('PTTL', KEYS[index]) }
  else
    answers[index] = { 'nothing' }
  end
end
return answers
