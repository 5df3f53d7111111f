"""A program that elects with a leader record in a key-value bucket of NATS, which forgets it after a time.

contender.py PORT BUCKET KEY TTL_MS NAMES STAMPS OWNER [SECONDS]

It creates the key where nothing is in it, updates it at the revision that it wrote last, and deletes it when it stops.
Unless NAMES is "none" it also replaces a record that has expired by its own clock, as a program in Go does whose fields
have names in "snake" or "camel" case, or no tag ("go"): it finds them in either case, and a time that is not there is
long past.
While it holds the key it appends "OWNER TERM PID BOOT_NANOSECONDS" to STAMPS every two milliseconds. Its term counts its
own leaderships and says nothing to others. It stops when an update is refused, and in any case before its time is over,
counted from before it asked. After SECONDS as a leader it gives the key back and waits a while; without them it leads
until it is killed.
"""

import base64
import datetime
import json
import os
import socket
import sys
import time


class Nats:
    def __init__(self, port):
        self.port, self.stream, self.count = port, None, 0
        # The server sends an answer to everybody who listens there.
        self.inbox = "ANSWER." + os.urandom(8).hex()

    def ask(self, subject, headers, body):
        """The answer as JSON, or None while the server is not there."""
        try:
            if self.stream is None:
                self.connect()
            self.count += 1
            reply = "%s.%d" % (self.inbox, self.count)
            head = ("NATS/1.0\r\n" + "".join("%s: %s\r\n" % header for header in headers) + "\r\n").encode()
            line = "HPUB %s %s %d %d\r\n" % (subject, reply, len(head), len(head) + len(body))
            self.stream.write(line.encode() + head + body + b"\r\n")
            self.stream.flush()
            return self.answer(reply)
        except OSError:
            self.stream = None
            return None

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=1)
        self.stream = connection.makefile("rwb")
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        self.stream.write(b"CONNECT " + json.dumps(options).encode() + b"\r\nSUB %s.* 1\r\n" % self.inbox.encode())

    def answer(self, reply):
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


NAMES = {
    "snake": ("leader_id", "term", "expires_at", "started_at"),
    "camel": ("leaderId", "term", "expiresAt", "startedAt"),
    "go": ("LeaderID", "Term", "ExpiresAt", "StartedAt"),
}


class Form:
    """What it writes into the key, and reads there."""

    def __init__(self, names, owner):
        self.names, self.owner = NAMES.get(names), owner

    def record(self, term, lasts):
        if self.names is None:
            return json.dumps({"instance_id": self.owner, "hostname": "elsewhere"}).encode()
        now = datetime.datetime.now(datetime.timezone.utc)
        values = self.owner, term, (now + datetime.timedelta(seconds=lasts)).isoformat(), now.isoformat()
        return json.dumps(dict(zip(self.names, values))).encode()

    def has_expired(self, text):
        if self.names is None:
            return False
        try:
            record = {name.lower(): value for name, value in json.loads(text).items()}
            expires = record.get(self.names[2].lower(), "0001-01-01T00:00:00Z").replace("Z", "+00:00")
            return datetime.datetime.now(datetime.timezone.utc) > datetime.datetime.fromisoformat(expires)
        except (ValueError, AttributeError):
            return True


class Key:
    def __init__(self, nats, bucket, key, form):
        self.nats, self.stream, self.subject = nats, "KV_" + bucket, "$KV.%s.%s" % (bucket, key)
        self.form = form

    def write(self, value, expected, *headers):
        """The new revision; 0 if it was refused; None if that is not known."""
        expected = ("Nats-Expected-Last-Subject-Sequence", expected)
        answer = self.nats.ask(self.subject, (expected,) + headers, value)
        if answer is None:
            return None
        return 0 if "error" in answer else answer["seq"]

    def create(self, value):
        revision = self.write(value, 0)
        if revision != 0:
            return revision
        # There may only be the mark of a deletion.
        request = json.dumps({"last_by_subj": self.subject}).encode()
        answer = self.nats.ask("$JS.API.STREAM.MSG.GET." + self.stream, (), request)
        message = (answer or {}).get("message")
        if message is None:
            return 0
        is_deleted = b"KV-Operation" in base64.b64decode(message.get("hdrs", ""))
        if not is_deleted and not self.form.has_expired(base64.b64decode(message.get("data", ""))):
            return 0
        return self.write(value, message["seq"])


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def main():
    port, bucket, key, ttl, names, stamps, owner = sys.argv[1:8]
    lasts = float(sys.argv[8]) * 1e9 if len(sys.argv) > 8 else float("inf")
    ttl = int(ttl) * 1_000_000
    form = Form(names, "%s-%d" % (owner, os.getpid()))
    key = Key(Nats(int(port)), bucket, key, form)
    # It stops this long after it asked: the rest is for a machine that is slow.
    stops = ttl * 7 // 10
    stamp = os.open(stamps, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    term = 0
    while True:
        asked = now()
        revision = key.create(form.record(term + 1, ttl / 1e9))
        if not revision:
            time.sleep(0.02)
            continue
        term += 1
        began, renewed = now(), asked
        while now() < renewed + stops:
            os.write(stamp, b"%s %d %d %d\n" % (owner.encode(), term, os.getpid(), now()))
            time.sleep(0.002)
            if now() > began + lasts:
                break
            if now() > renewed + ttl // 3:
                asked = now()
                answer = key.write(form.record(term, ttl / 1e9), revision)
                if answer:
                    revision, renewed = answer, asked
                elif answer == 0:
                    break
        key.write(b"", revision, ("KV-Operation", "DEL"))
        time.sleep(1.5)


main()
