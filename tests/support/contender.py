"""A program that elects with a lock on a server of Redis or NATS, and knows nothing of leaderrun.

contender.py redis PORT INFO KEY TTL_MS STAMPS OWNER
contender.py none|snake PORT BUCKET KEY TTL_MS STAMPS OWNER

On Redis it is a plain lock: SET KEY id NX PX ttl, renewed and released by compare; a record beside it says whose it is. On
NATS it is a leader record in a key-value bucket, which forgets it after a time: it creates the key where nothing is in it,
updates it at the revision that it wrote last, and deletes it when it stops. Unless the first word is "none" it also
replaces a record that has expired by its own clock, as a program in Go does whose fields have names in "snake" case: a time
that is not there is long past.

While it holds the lock it appends "OWNER TERM PID BOOT_NANOSECONDS" to STAMPS every two milliseconds. Its term counts its
own leaderships and says nothing to others. It stops when a renewal is refused, and in any case before its time is over,
counted from before it asked. Otherwise it leads until it is killed.
"""

import base64
import datetime
import json
import os
import socket
import sys
import time


class Server:
    """A connection that is made again after it has ended."""

    def __init__(self, port):
        self.port, self.stream = port, None

    def ask(self, *request):
        """The answer, or None while the server is not there."""
        try:
            if self.stream is None:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=1)
                self.stream = connection.makefile("rwb")
                self.greet()
            return self.exchange(*request)
        except OSError:
            self.stream = None
            return None

    def greet(self):
        pass


class Redis(Server):
    def exchange(self, *words):
        encoded = [str(word).encode() for word in words]
        self.stream.write(b"*%d\r\n" % len(encoded))
        self.stream.write(b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded))
        self.stream.flush()
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("the connection ended")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.stream.read(int(rest) + 2)[:-2].decode()
        if kind == b"-":
            sys.exit("redis said: " + rest.decode())
        return int(rest) if kind == b":" else rest.decode()


class RedisLock:
    RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
    RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

    def __init__(self, port, info, key, ttl, identity):
        self.redis, self.info, self.key, self.ttl, self.identity = Redis(port), info, key, ttl, identity

    def take(self, _term):
        if self.redis.ask("SET", self.key, self.identity, "NX", "PX", self.ttl) != "OK":
            return False
        self.tell()
        return True

    def renew(self, _term):
        answer = self.redis.ask("EVAL", self.RENEW, 1, self.key, self.identity, self.ttl)
        if answer == 1:
            self.tell()
        return None if answer is None else answer == 1

    def release(self):
        if self.redis.ask("EVAL", self.RELEASE, 1, self.key, self.identity) == 1:
            self.redis.ask("DEL", self.info)

    def tell(self):
        record = {"instance_id": self.identity, "hostname": "elsewhere", "started_at": "2026-01-01T00:00:00Z"}
        self.redis.ask("SET", self.info, json.dumps(record), "PX", self.ttl)


class Nats(Server):
    def __init__(self, port):
        super().__init__(port)
        self.count = 0
        # The server sends an answer to everybody who listens there.
        self.inbox = "ANSWER." + os.urandom(8).hex()

    def greet(self):
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        self.stream.write(b"CONNECT " + json.dumps(options).encode() + b"\r\nSUB %s.* 1\r\n" % self.inbox.encode())

    def exchange(self, subject, headers, body):
        """The answer as JSON."""
        self.count += 1
        reply = "%s.%d" % (self.inbox, self.count)
        head = ("NATS/1.0\r\n" + "".join("%s: %s\r\n" % header for header in headers) + "\r\n").encode()
        line = "HPUB %s %s %d %d\r\n" % (subject, reply, len(head), len(head) + len(body))
        self.stream.write(line.encode() + head + body + b"\r\n")
        self.stream.flush()
        while True:
            words = self.stream.readline().decode().split()
            if not words:
                raise OSError("the connection ended")
            if words[0] == "PING":
                self.stream.write(b"PONG\r\n")
                self.stream.flush()
            elif words[0] == "-ERR":
                sys.exit("nats said: " + " ".join(words))
            elif words[0] in ("MSG", "HMSG"):
                body = self.stream.read(int(words[-1]) + 2)[:-2]
                if words[0] == "HMSG":
                    body = body[int(words[-2]):]
                if words[1] == reply:
                    return json.loads(body) if body else None


class NatsLock:
    NAMES = {
        "snake": ("leader_id", "term", "expires_at", "started_at"),
    }

    def __init__(self, names, port, bucket, key, ttl, identity):
        self.names, self.nats, self.lasts, self.identity = self.NAMES.get(names), Nats(port), ttl / 1e3, identity
        self.stream, self.subject = "KV_" + bucket, "$KV.%s.%s" % (bucket, key)

    def take(self, term):
        value = self.record(term)
        self.revision = self.write(value, 0)
        if self.revision == 0:
            # There may only be the mark of a deletion.
            request = json.dumps({"last_by_subj": self.subject}).encode()
            answer = self.nats.ask("$JS.API.STREAM.MSG.GET." + self.stream, (), request)
            message = (answer or {}).get("message")
            if message is not None and self.is_free(message):
                self.revision = self.write(value, message["seq"])
        return bool(self.revision)

    def renew(self, term):
        answer = self.write(self.record(term), self.revision)
        self.revision = answer or self.revision
        return None if answer is None else answer != 0

    def release(self):
        self.write(b"", self.revision, ("KV-Operation", "DEL"))

    def write(self, value, expected, *headers):
        """The new revision; 0 if it was refused; None if that is not known."""
        expected = ("Nats-Expected-Last-Subject-Sequence", expected)
        answer = self.nats.ask(self.subject, (expected,) + headers, value)
        if answer is None:
            return None
        return 0 if "error" in answer else answer["seq"]

    def record(self, term):
        if self.names is None:
            return json.dumps({"instance_id": self.identity, "hostname": "elsewhere"}).encode()
        now = datetime.datetime.now(datetime.timezone.utc)
        expires = now + datetime.timedelta(seconds=self.lasts)
        values = self.identity, term, expires.isoformat(), now.isoformat()
        return json.dumps(dict(zip(self.names, values))).encode()

    def is_free(self, message):
        if b"KV-Operation" in base64.b64decode(message.get("hdrs", "")):
            return True
        if self.names is None:
            return False
        try:
            record = json.loads(base64.b64decode(message.get("data", "")))
            record = {name.lower(): value for name, value in record.items()}
            expires = record.get(self.names[2].lower(), "0001-01-01T00:00:00Z").replace("Z", "+00:00")
            return datetime.datetime.now(datetime.timezone.utc) > datetime.datetime.fromisoformat(expires)
        except (ValueError, AttributeError):
            return True


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def main():
    kind, port, place, key, ttl, stamps, owner = sys.argv[1:8]
    port, ttl, identity = int(port), int(ttl), "%s-%d" % (owner, os.getpid())
    if kind == "redis":
        lock = RedisLock(port, place, key, ttl, identity)
    else:
        lock = NatsLock(kind, port, place, key, ttl, identity)
    # It stops this long after it asked: the rest is for a machine that is slow.
    stops = ttl * 1_000_000 * 7 // 10
    stamp = os.open(stamps, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    term = 0
    while True:
        asked = now()
        if not lock.take(term + 1):
            time.sleep(0.02)
            continue
        term += 1
        renewed = asked
        while now() < renewed + stops:
            os.write(stamp, b"%s %d %d %d\n" % (owner.encode(), term, os.getpid(), now()))
            time.sleep(0.002)
            if now() > renewed + ttl * 1_000_000 // 3:
                asked = now()
                answer = lock.renew(term)
                if answer:
                    renewed = asked
                elif answer is False:
                    break
        lock.release()
        time.sleep(1.5)


main()
