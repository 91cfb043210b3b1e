"""A site over HTTP at 127.0.0.1: the pages of pages.json, a search of their titles, and failures that pass.

With `--world` the names on the pages have other letters. Each address fails on its first request, with status 429 or 500, for the share `--fails` of all addresses.
"""

import argparse
import hashlib
import html
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PAGES = json.loads((Path(__file__).parent / "pages.json").read_text())
"""Title and paragraphs of each page, by its address."""


CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


def rename(pages, world):
    """Move the letters of towns and values on by `world` places, as problems `site_questions` do."""
    moved = "".join(letters[world % len(letters) :] + letters[: world % len(letters)] for letters in (CONSONANTS, VOWELS))
    table = str.maketrans(CONSONANTS + VOWELS, moved)

    def change(text):
        town, kind, *value = text.split()
        return " ".join([town.translate(table), kind, *(word.translate(table) for word in value)])

    return {
        address: {
            "title": change(page["title"]),
            "paragraphs": [change(text) if text.startswith(page["title"]) else text for text in page["paragraphs"]],
        }
        for address, page in pages.items()
    }


def search(words, top):
    wanted = set(words.lower().split())
    ranked = sorted(PAGES, key=lambda address: -len(wanted & set(PAGES[address]["title"].split())))
    found = [address for address in ranked[:top] if wanted & set(PAGES[address]["title"].split())]
    return [{"url": address, "title": PAGES[address]["title"]} for address in found]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        with self.server.lock:
            self.server.counts[self.path] = count = self.server.counts.get(self.path, 0) + 1
        drawn = int(hashlib.sha256(self.path.encode()).hexdigest()[:8], 16) / 2**32
        if count == 1 and drawn < self.server.fails:
            return self.reply(429 if drawn < self.server.fails / 2 else 500, "text/plain", "later")
        parts = urlsplit(self.path)
        address, asked = parts.path.lstrip("/"), parse_qs(parts.query)
        if address == "search":
            results = search(asked.get("q", [""])[0], int(asked.get("top", ["5"])[0]))
            return self.reply(200, "application/json", json.dumps({"results": results}))
        if address not in PAGES:
            return self.reply(404, "text/plain", "no such page")
        page = PAGES[address]
        paragraphs = "".join(f"<p>{html.escape(text)}</p>" for text in page["paragraphs"])
        title = html.escape(page["title"])
        return self.reply(200, "text/html", f"<html><head><title>{title}</title></head><body>{paragraphs}</body></html>")

    def reply(self, status, kind, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


def make_server(port, fails):
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.lock, server.counts, server.fails = threading.Lock(), {}, fails
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8766)
    parser.add_argument("--fails", type=float, default=0.2)
    parser.add_argument("--world", type=int, default=0)
    given = parser.parse_args()
    PAGES = rename(PAGES, given.world)
    make_server(given.port, given.fails).serve_forever()
