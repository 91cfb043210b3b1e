"""Secrets taken out of what is said: in every form in which text is usually written down.

A value is looked for as it is and as Python, JSON, URLs, shells, HTML and base64 would write it; of a value that is a
URL also its user, password, query and longer parts of its path.
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
    """Takes the given secrets out of text, names, errors and values; without secrets it changes nothing."""

    def __init__(self, secrets: Iterable[str]):
        self.forms = list_written_forms(frozenset(secrets))
        self.pattern = re.compile("|".join(map(re.escape, self.forms))) if self.forms else None

    @property
    def patterns(self) -> list[bytes]:
        """What is looked for in bytes."""
        return [form.encode(errors="surrogateescape") for form in self.forms]

    def text(self, text: str) -> str:
        """The text with stars in the place of every secret."""
        return self.pattern.sub(STARS, text) if self.pattern else text

    def value(self, value: Any) -> Any:
        """JSON with the same done to its texts and to the names in it; numbers stay."""
        if self.pattern is None:
            return value
        if isinstance(value, dict):
            return self._named((self.value(k), self.value(v)) for k, v in value.items())
        if isinstance(value, list | tuple):
            return [self.value(v) for v in value]
        return self.text(value) if isinstance(value, str) else value

    def error(self, error: BaseException) -> BaseException | None:
        """The error with its causes, changed so that none of them says a secret; None where that cannot be done."""
        chain: list[BaseException] = []
        following: BaseException | None = error
        while following is not None and following not in chain:
            chain.append(following)
            following = following.__cause__ or following.__context__
        for each in chain if self.pattern else ():
            each.args = tuple(self.value(list(each.args)))
            for name in (*vars(each), "strerror", "filename", "filename2"):
                if isinstance(said := getattr(each, name, None), str):
                    setattr(each, name, self.text(said))
            each.__notes__ = [self.text(note) for note in getattr(each, "__notes__", [])]
            if self.pattern and self.pattern.search(f"{each} {each!r}"):
                return None
        return error

    def _named(self, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """Names that became equal are numbered."""
        found: dict[Any, Any] = {}
        for name, value in pairs:
            number, own = 1, name
            while name in found:
                number += 1
                name = f"{own} ({number})"
            found[name] = value
        return found


@lru_cache(maxsize=64)
def make_redactor(secrets: frozenset[str]) -> Redactor:
    """The redactor of these secrets, made once."""
    return Redactor(secrets)


def list_written_forms(secrets: frozenset[str]) -> tuple[str, ...]:
    """Every text that is to be hidden, the longest first."""
    parts = {part for secret in secrets for part in _split_parts(secret) if len(part) >= SHORTEST}
    written = {form for part in parts for form in _write_forms(part)}
    return tuple(sorted((form for form in written if len(form) >= SHORTEST), key=lambda form: (-len(form), form)))


def _split_parts(secret: str) -> Iterator[str]:
    """The value, what is left without blanks at its ends, its lines, and what a URL carries."""
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
    """A text in the ways in which it is written down, two of them upon each other included: an error inside of JSON."""
    once = {text, *_escape(text)}
    twice = once | {form for each in once for form in _escape(each)}
    return twice | set(_encode(text))


def _escape(text: str) -> Iterator[str]:
    yield repr(text)[1:-1]
    yield ascii(text)[1:-1]
    yield repr(text + "'\"")[1:-1].removesuffix("\\'\"")  # as in a text that holds both kinds of quotes
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
        yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)


def _encode(text: str) -> Iterator[str]:
    """Base64 at each of the three places at which a text can begin in it, and hexadecimal."""
    raw = text.encode(errors="surrogateescape")
    yield raw.hex()
    yield raw.hex().upper()
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + raw).decode()
        # Characters that also hold bits of what is before or after it are left out.
        certain = whole[-(-8 * before // 6) : 8 * (before + len(raw)) // 6]
        yield certain
        yield certain.translate({ord("+"): "-", ord("/"): "_"})
