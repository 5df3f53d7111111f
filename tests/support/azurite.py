"""Asks Azurite, with the key that Microsoft publishes for it. Usage: azurite.py PORT METHOD PATH[?QUERY]"""

import base64
import hashlib
import hmac
import http.client
import sys
import urllib.parse
from email.utils import formatdate

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

port, method, target = sys.argv[1:]
url = urllib.parse.urlsplit(target)
headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
resource = f"/{ACCOUNT}/{ACCOUNT}{url.path}"
for name, value in sorted(urllib.parse.parse_qsl(url.query)):
    resource += f"\n{name}:{value}"
signed = method + "\n" * 12 + "".join(f"{name}:{headers[name]}\n" for name in sorted(headers)) + resource
signature = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
headers["authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
connection = http.client.HTTPConnection("127.0.0.1", int(port))
connection.request(method, f"/{ACCOUNT}{target}", headers=headers)
sys.exit(connection.getresponse().status >= 300)
