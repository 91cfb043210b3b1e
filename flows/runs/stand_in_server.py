"""A stand-in for the servers of a recipe, in this process: OpenAI's protocol, and that of reward servers.

It knows no model: an answer is a short text with a number from 0 to 10 that depends on the question alone.
"""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flows.planning.stand_in_servers import STAND_IN_ADDRESS, STAND_IN_VARIABLE
from schemas.base import JsonObject
from schemas.plan import Plan

LARGEST = 1 << 24
"""Most bytes of a question."""


@contextmanager
def serve_stand_ins(plan: Plan) -> Iterator[None]:
    """Answer in place of the servers of a plan that was made with `--stand-ins`; nothing for any other plan."""
    if STAND_IN_ADDRESS not in json.dumps([step.settings for step in plan.steps]):
        yield
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        before = os.environ.get(STAND_IN_VARIABLE)
        os.environ[STAND_IN_VARIABLE] = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[STAND_IN_VARIABLE]
            else:
                os.environ[STAND_IN_VARIABLE] = before
            server.shutdown()
            thread.join()


def answer(path: str, question: JsonObject) -> JsonObject | None:
    """Return the answer to a question of one of the protocols; None for a path of neither."""
    if path.endswith("/score"):
        return {"scores": [make_number(sample) / 10 for sample in question["samples"]]}
    text = f"It is {make_number(question)}."
    if path.endswith("/chat/completions"):
        choice: JsonObject = {"message": {"role": "assistant", "content": text}}
    elif path.endswith("/completions"):
        choice = {"text": text}
    else:
        return None
    usage = {"prompt_tokens": len(json.dumps(question)) // 4, "completion_tokens": len(text.split())}
    return {"id": "stand-in", "choices": [{"index": 0, "finish_reason": "stop", **choice}], "usage": usage}


def make_number(question: Any) -> int:
    """Return a number from 0 to 10 that depends on a question alone."""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).digest()[0] % 11


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer one question."""
        size = int(self.headers.get("Content-Length") or 0)
        made: JsonObject | None = None
        if 0 < size <= LARGEST:
            try:
                made = answer(self.path, json.loads(self.rfile.read(size)))
            except (ValueError, KeyError, TypeError):
                made = None
        body = json.dumps(made or {"error": "the stand-in knows no such request"}).encode()
        self.send_response(200 if made else 400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""
