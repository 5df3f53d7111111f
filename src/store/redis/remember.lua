-- An operator vouches that nobody has used this server.
if ARGV[1] == 'new' then
  call('HSET', STORE, 'run', run, 'since', '0')
end
return { number(now - remember()) }
