return { number(now - remember()) }
