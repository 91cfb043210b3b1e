"""What the tests of the endpoint's safety ask with: bare sockets, because clients send only what is well-formed."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@dataclass(frozen=True)
class Reply:
    """What came back; status 0 where the connection was closed without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self):
        return json.loads(self.body)["error"]


class Client:
    """Sends bytes to a port of 127.0.0.1."""

    def __init__(self, port):
        self.port = port

    def connect(self, seconds=200):
        return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)

    def send(self, content, seconds=200):
        """What the server answers to these bytes, read to the end of the first answer or of the connection."""
        with self.connect(seconds) as opened:
            with contextlib.suppress(OSError):  # it may answer and close before all was sent
                opened.sendall(content)
            return read_reply(opened)

    def head(self, method="POST", path="/v1/chat/completions", **headers):
        """A request line with headers; those given as None are left out."""
        given = {"Host": f"127.0.0.1:{self.port}", "Content-Type": "application/json", "Connection": "close"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items() if v is not None)]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"

    def post(self, body, path="/v1/chat/completions", **headers):
        """The answer to a body: bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send(self.head(path=path, **{"Content-Length": str(len(content)), **headers}) + content)

    def get(self, path="/health", **headers):
        return self.send(self.head("GET", path, **headers))


def read_reply(opened):
    """Read one answer."""
    content = b""
    try:
        while part := opened.recv(65536):
            content += part
            if _whole(content):
                break
    except ConnectionResetError:
        pass
    head, _, body = content.partition(b"\r\n\r\n")
    if not head:
        return Reply(0, {}, b"")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    # What follows may be answered too: bytes after the first request can come as an invalid second one.
    return Reply(int(first.split()[1]), headers, body[: int(headers.get("content-length", len(body)))])


def _whole(content):
    head, found, body = content.partition(b"\r\n\r\n")
    at = head.lower().find(b"content-length:")
    return bool(found) and at >= 0 and len(body) >= int(head[at + 15 :].split(b"\r\n")[0])


WATCHER = """
import socket, sys, time
ask = b"GET /health HTTP/1.1\\r\\nHost: 127.0.0.1:%s\\r\\nConnection: close\\r\\n\\r\\n" % sys.argv[1].encode()
while True:
    begun, answer = time.monotonic(), b""
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as opened:
            opened.sendall(ask)
            while part := opened.recv(65536):
                answer += part
    except OSError as error:
        answer = repr(error).encode()
    right = answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(b'{"status":"ok"}')
    print(time.monotonic() - begun, "right" if right else answer[:200], flush=True)
    time.sleep(0.02)
"""


class Watch:
    """Asks /health over and over in a process of its own, and keeps how long each answer took."""

    def __init__(self, client):
        self.port, self.seconds, self.wrong = client.port, [], []

    def __enter__(self):
        words = [sys.executable, "-S", "-c", WATCHER, str(self.port)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()
        return self

    def __exit__(self, *error):
        time.sleep(0.2)  # so that also the shortest test has some answers
        self.process.kill()
        for line in self.process.communicate()[0].splitlines():
            seconds, _, answer = line.partition(" ")
            self.seconds.append(float(seconds))
            if answer != "right":
                self.wrong.append(answer)
