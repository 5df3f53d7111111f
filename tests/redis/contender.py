"""A program that elects with a plain Redis lock: SET key id NX PX ttl, renewed and released by compare.

contender.py PORT KEY INFO TTL_MS STAMPS OWNER [SECONDS]

INFO may be "-". While it holds the lock it appends "OWNER TERM PID BOOT_NANOSECONDS" to STAMPS every two milliseconds.
Its term counts its own leaderships and says nothing to others. It stops when a renewal is refused, and in any case
before its time is over, counted from before it asked. After SECONDS as a leader it gives the lock back and waits a
while; without them it leads until it is killed.
"""

import json
import os
import socket
import sys
import time

RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Redis:
    def __init__(self, port):
        self.port, self.stream = port, None

    def ask(self, *words):
        """The answer, or None while the server is not there."""
        try:
            if self.stream is None:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=1)
                self.stream = connection.makefile("rwb")
            encoded = [str(word).encode() for word in words]
            self.stream.write(b"*%d\r\n" % len(encoded))
            self.stream.write(b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded))
            self.stream.flush()
            return self.answer()
        except OSError:
            self.stream = None
            return None

    def answer(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("the connection ended")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.stream.read(int(rest) + 2)[:-2].decode()
        if kind == b"-":
            sys.exit("redis said: " + rest.decode())
        return int(rest) if kind == b":" else rest.decode()


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def main():
    port, key, info, ttl, stamps, owner = sys.argv[1:7]
    lasts = float(sys.argv[7]) * 1e9 if len(sys.argv) > 7 else float("inf")
    ttl = int(ttl)
    redis, identity = Redis(int(port)), "%s-%d" % (owner, os.getpid())
    # It stops this long after it asked: the rest is for a machine that is slow.
    stops = ttl * 1_000_000 * 7 // 10

    def tell():
        if info != "-":
            record = {"instance_id": identity, "hostname": "elsewhere", "started_at": "2026-01-01T00:00:00Z"}
            redis.ask("SET", info, json.dumps(record), "PX", ttl)

    stamp = os.open(stamps, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    term = 0
    while True:
        asked = now()
        if redis.ask("SET", key, identity, "NX", "PX", ttl) != "OK":
            time.sleep(0.02)
            continue
        tell()
        term += 1
        began, renewed = now(), asked
        while now() < renewed + stops:
            os.write(stamp, b"%s %d %d %d\n" % (owner.encode(), term, os.getpid(), now()))
            time.sleep(0.002)
            if now() > began + lasts:
                break
            if now() > renewed + ttl * 1_000_000 // 3:
                asked = now()
                answer = redis.ask("EVAL", RENEW, 1, key, identity, ttl)
                if answer == 1:
                    renewed = asked
                    tell()
                elif answer == 0:
                    break
        if redis.ask("EVAL", RELEASE, 1, key, identity) == 1 and info != "-":
            redis.ask("DEL", info)
        time.sleep(1.5)


main()
