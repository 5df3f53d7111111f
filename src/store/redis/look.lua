KEY, INFO = KEYS[5], KEYS[6]
return look(known_since(), ARGV[1])
