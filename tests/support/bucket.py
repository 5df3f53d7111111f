"""moto's S3, which is no S3: acts on one request at a time, for its usual server is not atomic, and keeps a journal.

Reads a line for each server to start, a JSON array [PORT, JOURNAL|null, ADDRESS, DISHONEST], forks it, and writes its
process number: to load moto takes a second. All servers end with this process, and this one at the end of its input.

What was written is done again when a server starts on the same journal. The bucket "locks" is there from the beginning.
"""

import base64
import ctypes
import io
import json
import logging
import os
import signal
import sys
import threading
import time

from moto.s3.models import S3Backend
from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

PR_SET_PDEATHSIG = 1

logging.disable(logging.CRITICAL)
CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")
one_at_a_time = threading.Lock()
application = create_backend_app("s3")


def again(line):
    kept = json.loads(line)
    environment = kept["environment"] | {
        "wsgi.input": io.BytesIO(base64.b64decode(kept["body"])),
        "wsgi.errors": sys.stderr,
        "wsgi.url_scheme": "http",
        "wsgi.version": (1, 0),
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for _ in application(environment, lambda *_: None):
        pass


def journaled(environment, start, kept_in):
    body = environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
    environment["wsgi.input"] = io.BytesIO(body)
    told = []

    def listen(status, headers, *rest):
        told.append(status)
        return start(status, headers, *rest)

    # A client may open a connection ahead of its request, so each has a thread; but one of them acts at a time.
    with one_at_a_time:
        answer = list(application(environment, listen))
        if environment["REQUEST_METHOD"] in ("PUT", "DELETE", "POST") and told[0].startswith("2"):
            plain = {
                name: value for name, value in environment.items() if isinstance(value, str) and name not in CONDITIONS
            }
            print(json.dumps({"environment": plain, "body": base64.b64encode(body).decode()}), file=kept_in, flush=True)
    return answer


class Quiet(WSGIRequestHandler):
    def log(self, *_):
        pass


def bucket():
    again(
        json.dumps(
            {
                "environment": {
                    "REQUEST_METHOD": "PUT",
                    "PATH_INFO": "/locks",
                    "SCRIPT_NAME": "",
                    "QUERY_STRING": "",
                    "SERVER_NAME": "127.0.0.1",
                    "SERVER_PORT": "80",
                    "HTTP_HOST": "127.0.0.1",
                    "CONTENT_LENGTH": "0",
                },
                "body": "",
            }
        )
    )


def serve(port, journal, address, dishonest):
    in_use = application
    if journal:
        with open(journal, "a+") as before:
            before.seek(0)
            # The last line may be half of one: nobody was told that it was written.
            for line in before:
                if line.endswith("\n"):
                    again(line)
        kept_in = open(journal, "a")
        in_use = lambda environment, start: journaled(environment, start, kept_in)
    if dishonest:
        # It has compared by then, and writes in a second step.
        write = S3Backend.put_object
        S3Backend.put_object = lambda *rest, **named: time.sleep(0.005) or write(*rest, **named)
    make_server(address, port, in_use, threaded=True, request_handler=Quiet).serve_forever()


bucket()
# Nobody waits for the servers.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
mother = os.getpid()
for line in sys.stdin:
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == mother:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        serve(*json.loads(line))
    os._exit(1)
