"""A server with OpenAI's protocol that fails as it is told to, and keeps the books: what every answer was paid for."""

import hashlib
import json
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIMIT = 60
"""Seconds after which a hanging request is let go in any case."""


class Teacher:
    """`script` maps the last message of a prompt (or `*`) to what its tries meet, one word each; then all is well.

    `500` and the like (with `Retry-After` for 429), `hang`, `drop` and `refuse` come before an answer is made;
    `malformed`, `truncated` and `lost` after it, so it is paid for. A try that carries the idempotency key of an
    answer gets it again and pays nothing, if the server `knows_keys`. While the `gate` is closed requests are held;
    afterwards they are dropped if the server `drops_held`. `answer(body)` gives text and finish.
    """

    def __init__(self, answer=None, script=None, *, knows_keys=True, retry_after="0.001", usage=True, drops_held=False):
        self.answer = answer or (lambda body: (f"said {body['seed']}", "stop"))
        self.script = {key: list(words) for key, words in (script or {}).items()}
        self.knows_keys, self.retry_after, self.usage, self.drops_held = knows_keys, retry_after, usage, drops_held
        self.lock, self.over, self.gate = threading.Lock(), threading.Event(), threading.Event()
        self.gate.set()
        self.tries, self.made, self.paid, self.met = defaultdict(int), {}, [], Counter()
        self.bodies, self.headers, self.under_way, self.most_under_way, self.held = [], [], 0, 0, 0

    @property
    def paid_questions(self):
        """How often every question was paid for."""
        return Counter(question for _, question in self.paid)

    @property
    def paid_tokens(self):
        """(input, output) of all answers that were paid for."""
        used = [self._usage(json.loads(question), *self.answer(json.loads(question))) for _, question in self.paid]
        return sum(u["prompt_tokens"] for u in used), sum(u["completion_tokens"] for u in used)

    def next_word(self, body):
        """What this try of a question meets."""
        name = body["messages"][-1]["content"] if "messages" in body else str(body["prompt"])
        with self.lock:
            words = self.script.get(name, self.script.get("*", []))
            self.tries[json.dumps(body, sort_keys=True)] += 1
            place = self.tries[json.dumps(body, sort_keys=True)] - 1
            word = words[place] if place < len(words) else "well"
            self.met[word] += 1
        return word

    def answered(self, body, key):
        """The answer, which is paid for unless it is given again."""
        with self.lock:
            if self.knows_keys and key in self.made:
                return self.made[key]
            self.paid.append((key, json.dumps(body, sort_keys=True)))
            text, finish = self.answer(body)
            replies = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
            made = {
                "id": "x",
                "object": "chat.completion",
                "choices": [{"index": 0, "finish_reason": finish} | replies],
            }
            if self.usage:
                made["usage"] = self._usage(body, text, finish)
            self.made[key] = made
            return made

    @staticmethod
    def _usage(body, text, finish):
        prompt = " ".join(m["content"] for m in body["messages"]) if "messages" in body else body["prompt"]
        asked = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        return {"prompt_tokens": asked, "completion_tokens": len((text or "").split())}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    teacher: Teacher

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        teacher = self.teacher
        with teacher.lock:
            teacher.bodies.append(body)
            teacher.headers.append({name.lower(): value for name, value in self.headers.items()})
            teacher.under_way += 1
            teacher.most_under_way = max(teacher.most_under_way, teacher.under_way)
            held = not teacher.gate.is_set()
            teacher.held += held
        try:
            teacher.gate.wait(LIMIT)
            self.meet("drop" if held and teacher.drops_held else teacher.next_word(body), body)
        finally:
            with teacher.lock:
                teacher.under_way -= 1

    def meet(self, word, body):
        teacher, key = self.teacher, self.headers.get("Idempotency-Key")
        if word.isdigit():
            more = {"Retry-After": teacher.retry_after} if word == "429" else {}
            self.reply(int(word), {"error": {"message": f"scripted {word}", "code": None}}, more)
        elif word == "refuse":
            self.reply(400, {"error": {"message": "the prompt is too long", "code": "context_length_exceeded"}})
        elif word == "quota":
            self.reply(429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}})
        elif word == "hang":
            teacher.over.wait(LIMIT)
            self.close_connection = True
        elif word == "drop":
            self.close_connection = True
        else:
            self.after_answer(word, teacher.answered(body, key))

    def after_answer(self, word, made):
        if word == "malformed":
            self.send(200, b'{"choices": [{"message": ', {})
        elif word == "odd":
            self.send(200, b'{"choices": []}', {})
        elif word == "truncated":
            text = json.dumps(made).encode()
            self.send(200, text[: len(text) // 2], {"Content-Length": str(len(text))})
            self.close_connection = True
        elif word == "lost":
            self.close_connection = True
        else:
            self.reply(200, made)

    def reply(self, status, value, more=None):
        self.send(status, json.dumps(value).encode(), more or {})

    def send(self, status, text, more):
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json", "Content-Length": str(len(text))} | more).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words):
        """Quiet."""


class Server(ThreadingHTTPServer):
    """Clients that hang up are no news."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """Quiet."""


@contextmanager
def serving(teacher):
    """The teacher behind a port of this machine; gives its address."""
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"teacher": teacher}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        teacher.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def digest(text):
    """A number that a text decides."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
