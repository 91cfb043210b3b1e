"""A client of a site: each address is asked for once, and again while it fails in a way that may pass."""

import json
import threading
from collections import OrderedDict
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import httpx
from tenacity import Retrying
from tenacity.wait import wait_exponential

from learning.api.retries import LONGEST_WAIT, TransientFailure, may_pass, read_retry_after, retrying

MAX_BYTES = 4 << 20
"""Limit of an answer."""
MAX_KEPT = 4096
"""Answers that are remembered."""
SHOWN = 80
"""Characters of an address in messages."""
SKIPPED = frozenset({"script", "style", "head", "template", "noscript"})
BLOCKS = frozenset({"p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "section", "article", "pre", "blockquote"})


class PageError(ValueError):
    """An address that gave nothing; the agent sees this message."""


class PageClient:
    """Gets addresses of a site over HTTP, for all episodes of a step; several threads may call its methods."""

    def __init__(self, url: str, hosts: list[str], *, timeout: float, max_retries: int, backoff: float) -> None:
        self.url, self.max_retries, self.backoff = url.rstrip("/") + "/", max_retries, backoff
        self.hosts = {urlsplit(self.url).netloc, *hosts}
        # Following a redirect would lead to hosts that the recipe does not name.
        self.http = httpx.Client(timeout=timeout, follow_redirects=False)
        self.lock, self.kept = threading.Lock(), OrderedDict[str, bytes]()
        self.under_way: dict[str, threading.Lock] = {}

    def search(self, query: str, top: int) -> list[tuple[str, str]]:
        """Return address and title of the pages that the site finds. Raise PageError."""
        text = self.get(f"search?{urlencode({'q': query, 'top': top})}")
        try:
            results: Any = json.loads(text)["results"]
            return [(str(one["url"]), str(one["title"])) for one in results][:top]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise PageError("the search gave no list of results") from None

    def read(self, address: str) -> str:
        """Return the text of a page. Raise PageError."""
        return read_html(self.get(address).decode(errors="replace"))

    def get(self, address: str) -> bytes:
        """Return what an address gives, which is asked for once at a time and remembered. Raise PageError."""
        try:
            url = urljoin(self.url, address)
            parts = urlsplit(url)
        except ValueError:
            raise PageError(f"{address[:SHOWN]} is no address") from None
        if parts.scheme not in ("http", "https") or parts.netloc not in self.hosts:
            raise PageError(f"{address[:SHOWN]} is not an address of this site")
        with self.lock:
            own = self.under_way.setdefault(url, threading.Lock())
        with own:
            if url not in self.kept:
                made = self._try(url)
                with self.lock:
                    self.kept[url] = made
                    if len(self.kept) > MAX_KEPT:
                        self.under_way.pop(self.kept.popitem(last=False)[0], None)
            return self.kept[url]

    def _try(self, url: str) -> bytes:
        again = Retrying(**retrying(self.max_retries, wait_exponential(multiplier=self.backoff, max=LONGEST_WAIT)))
        try:
            return again(self._ask, url)
        except TransientFailure as error:
            raise PageError(f"no answer after {self.max_retries + 1} tries: {error}") from None

    def _ask(self, url: str) -> bytes:
        """Return the body of an answer with status 200. Raise TransientFailure or PageError."""
        try:
            with self.http.stream("GET", url) as response:
                body = b""
                for part in response.iter_bytes():
                    body += part
                    if len(body) > MAX_BYTES:
                        raise PageError(f"the page has more than {MAX_BYTES >> 20} MiB")
        except (httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise PageError(f"{url[:SHOWN]} is no address") from None
        except httpx.HTTPError as error:
            raise TransientFailure(type(error).__name__) from None
        if response.status_code == 200:
            return body
        if may_pass(response.status_code):
            raise TransientFailure(f"status {response.status_code}", read_retry_after(response))
        raise PageError(f"status {response.status_code}")


def read_html(text: str) -> str:
    """Return the words of a page, one line for each block; what is not shown, such as scripts, is left out."""
    parser = _Text()
    parser.feed(text)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)


class _Text(HTMLParser):
    """Collects what a page shows."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a block, or something that is not shown."""
        self.hidden += tag in SKIPPED
        self.parts += ["\n"] if tag in BLOCKS else []

    def handle_endtag(self, tag: str) -> None:
        """Close it."""
        self.hidden = max(0, self.hidden - (tag in SKIPPED))
        self.parts += ["\n"] if tag in BLOCKS else []

    def handle_data(self, data: str) -> None:
        """Keep text that is shown."""
        if not self.hidden:
            self.parts.append(data.replace("\n", " "))


def cut_segments(text: str, size: int) -> list[str]:
    """Return a text in segments of whole lines, of at most `size` characters; a longer line is cut."""
    pieces = [line[at : at + size] for line in text.splitlines() for at in range(0, len(line), size)]
    segments: list[str] = []
    for piece in pieces:
        if segments and len(segments[-1]) + 1 + len(piece) <= size:
            segments[-1] += f"\n{piece}"
        else:
            segments.append(piece)
    return segments
