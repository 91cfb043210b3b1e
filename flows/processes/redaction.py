"""Remove secrets from text, in every form in which text is usually written down.

A value is found as it is and as Python, JSON, URLs, shells, HTML and base64 write it; of a URL also its user, password,
query and longer parts of its path.
"""

import base64
import html
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

SHORTEST = 6
"""Characters of the shortest value that is hidden; hiding shorter ones would take ordinary words out."""
LONG_PART = 16
"""Characters from which on a part of a URL's path is taken for a secret, as in the address of a webhook."""
STARS = "***"


class Redactor:
    """Removes given secrets from text, names, errors and values; without secrets it changes nothing."""

    def __init__(self, secrets: Iterable[str]):
        self.forms = list_written_forms(frozenset(secrets))
        self.pattern = re.compile("|".join(map(re.escape, self.forms))) if self.forms else None

    @property
    def patterns(self) -> list[bytes]:
        """Return the patterns as bytes."""
        return [form.encode(errors="surrogateescape") for form in self.forms]

    def text(self, text: str) -> str:
        """Return the text with every secret starred out."""
        return self.pattern.sub(STARS, text) if self.pattern else text

    def value(self, value: Any) -> Any:
        """Return JSON with its texts and names redacted; numbers stay."""
        if self.pattern is None:
            return value
        if isinstance(value, dict):
            return self._named((self.value(k), self.value(v)) for k, v in value.items())
        if isinstance(value, list | tuple):
            return [self.value(v) for v in value]
        return self.text(value) if isinstance(value, str) else value

    def error(self, error: BaseException) -> BaseException | None:
        """Redact an error and its causes in place and return it; None if that cannot be done."""
        chain: list[BaseException] = []
        following: BaseException | None = error
        while following is not None and following not in chain:
            chain.append(following)
            following = following.__cause__ or following.__context__
        for each in chain if self.pattern else ():
            each.args = tuple(self.value(list(each.args)))
            for name in (*vars(each), "strerror", "filename", "filename2"):
                if isinstance(text := getattr(each, name, None), str):
                    setattr(each, name, self.text(text))
            each.__notes__ = [self.text(note) for note in getattr(each, "__notes__", [])]
            if self.pattern and self.pattern.search(f"{each} {each!r}"):
                return None
        return error

    def _named(self, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """Return pairs as a dict; names that became equal are numbered."""
        numbered: dict[Any, Any] = {}
        for name, value in pairs:
            number, own = 1, name
            while name in numbered:
                number += 1
                name = f"{own} ({number})"
            numbered[name] = value
        return numbered


@lru_cache(maxsize=64)
def make_redactor(secrets: frozenset[str]) -> Redactor:
    """Return the redactor of these secrets, cached."""
    return Redactor(secrets)


def list_written_forms(secrets: frozenset[str]) -> tuple[str, ...]:
    """Return every text to redact, the longest first."""
    parts = {part for secret in secrets for part in _split_parts(secret) if len(part) >= SHORTEST}
    written = {form for part in parts for form in _write_forms(part)}
    return tuple(sorted((form for form in written if len(form) >= SHORTEST), key=lambda form: (-len(form), form)))


def _split_parts(secret: str) -> Iterator[str]:
    """Yield the value, the value without surrounding blanks, its lines, and the parts of a URL."""
    yield secret
    yield secret.strip()
    yield from (line.strip() for line in secret.splitlines())
    if "://" in secret or "@" in secret:
        yield from _split_url(secret.strip())


def _split_url(address: str) -> Iterator[str]:
    try:
        url = urlsplit(address if "://" in address else f"//{address}")
    except ValueError:  # no URL after all
        return
    user, _, _ = url.netloc.rpartition("@")
    path = [part for part in url.path.split("/") if len(part) >= LONG_PART]
    query = [part.partition("=")[2] for part in url.query.split("&")]
    for part in (user, *user.split(":", 1), *query, *path, url.fragment):
        yield part
        yield unquote(part)
    yield from (value for _, value in parse_qsl(url.query))


def _write_forms(text: str) -> set[str]:
    """Return the written forms of a text, also two applied in turn, such as an error inside JSON."""
    once = {text, *_escape(text)}
    twice = once | {form for each in once for form in _escape(each)}
    return twice | set(_encode(text))


def _escape(text: str) -> Iterator[str]:
    yield repr(text)[1:-1]
    yield ascii(text)[1:-1]
    yield repr(text + "'\"")[1:-1].removesuffix("\\'\"")  # as in a text with both kinds of quotes
    yield repr(text.encode(errors="surrogateescape"))[2:-1]
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield json.dumps(text)[1:-1].replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    yield from (html.escape(text), html.escape(text, quote=False))
    for shell in (shlex.quote(text), text.replace("'", "'\\''"), re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)):
        yield shell[1:-1] if shell != text and shell[:1] == shell[-1:] == "'" else shell
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw), quote(raw, safe=":/?#[]@!$&'()*+,;=")):
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)


def _encode(text: str) -> Iterator[str]:
    """Yield base64 at each of the three offsets at which a text can begin, and hexadecimal."""
    raw = text.encode(errors="surrogateescape")
    yield raw.hex()
    yield raw.hex().upper()
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).decode()
        # Characters that also encode bits of the text before or after it are left out.
        certain = encoded[-(-8 * before // 6) : 8 * (before + len(raw)) // 6]
        yield certain
        yield certain.translate({ord("+"): "-", ord("/"): "_"})
