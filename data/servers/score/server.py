"""A reward server over HTTP at 127.0.0.1: 1 for a completion that is the answer of its problem, else 0."""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        samples = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["samples"]
        scores = [float(sample["completion"].strip() == sample["answer"]) for sample in samples]
        body = json.dumps({"scores": scores}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, default=8765)
ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()
