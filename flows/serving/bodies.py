"""Read request bodies within limits of size and time, and parse them as strict JSON."""

import asyncio
import json
import math
import re
from typing import Any, Never

from fastapi import Request

from flows.serving.refusals import Refused, quoted
from schemas.base import JsonObject

BASE_BYTES = 64 * 1024
BYTES_PER_TOKEN = 192
"""Bytes of a body per token: 32 characters (`requests.CHARACTERS_PER_TOKEN`), each written as `\\uXXXX`."""
BASE_ELEMENTS = 1024
ELEMENTS_PER_TOKEN = 8
"""Most values in a body per token, enough for a batch of prompts given as token ids."""
MAX_CONTAINERS = 4096
"""Most lists and objects in a body; these cost the most to create."""
TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
DEEPEST = 16
"""Most nested levels of lists and objects."""
LARGEST_INTEGER = 2**64
DIGITS = 20


def max_body_bytes(max_length: int) -> int:
    """Return the largest body for a model of that length: 832 KiB for 4096 tokens."""
    return BASE_BYTES + BYTES_PER_TOKEN * max_length


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Return the body of a request. Raise Refused if it is too long or too slow."""
    announced = request.headers.get("content-length", "")
    if len(announced) > DIGITS or int(announced or 0) > limit:
        raise _refuse_too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise _refuse_too_large(limit)
    except TimeoutError as error:
        message = f"the body did not arrive within {seconds:g} s"
        raise Refused(message, status=408, headers={"connection": "close"}) from error
    return bytes(body)


def parse_json(body: bytes, max_length: int) -> Any:
    """Return JSON with encodable texts, finite numbers and unique keys. Raise Refused otherwise."""
    _check_counts(body, BASE_ELEMENTS + ELEMENTS_PER_TOKEN * max_length)
    try:
        value = json.loads(
            body.decode(),
            object_pairs_hook=_make_object,
            parse_constant=_refuse_constant,
            parse_int=_parse_integer,
            parse_float=_parse_float,
        )
    except RecursionError as error:
        raise _refuse_too_deep() from error
    except ValueError as error:  # also raised for text that is not UTF-8
        raise Refused(f"the body is not JSON: {error}") from error
    _check_values(value)
    return value


def _check_counts(body: bytes, most: int) -> None:
    """Raise Refused for JSON that would take long to parse, judged by brackets and commas outside of strings."""
    signs, at = bytearray(), 0
    for number, text in enumerate(TEXT.finditer(body)):
        if number > 2 * most:
            raise Refused(f"the body has more than {2 * most} keys and texts", status=413)
        signs += body[at : text.start()]
        at = text.end()
    signs += body[at:]
    containers = signs.count(b"[") + signs.count(b"{")
    if containers > MAX_CONTAINERS:
        raise Refused(f"the body has more than {MAX_CONTAINERS} lists and objects", status=413)
    if containers + signs.count(b",") > most:
        raise Refused(f"the body has more than {most} values", status=413)


def _check_values(value: Any) -> None:
    """Check values level by level, without recursion."""
    level = [value]
    for _ in range(DEEPEST + 1):
        below: list[Any] = []
        for each in level:
            if isinstance(each, str):
                _check_text(each)
            elif isinstance(each, list):
                below += each
            elif isinstance(each, dict):
                for key in each:
                    _check_text(key)
                below += each.values()
        if not below:
            return
        level = below
    raise _refuse_too_deep()


def _check_text(text: str) -> None:
    if "\0" in text:
        raise Refused("a text holds the character U+0000")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused("a text holds half of a surrogate pair") from error


def _make_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    members: JsonObject = {}
    for key, value in pairs:
        if key in members:
            raise Refused(f"the key {quoted(ascii(key))} occurs twice in an object")
        members[key] = value
    return members


def _parse_integer(text: str) -> int:
    if len(text) > DIGITS or abs(number := int(text)) > LARGEST_INTEGER:
        raise Refused("a whole number has more than 64 bits")
    return number


def _parse_float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise Refused("a number is too large")
    return number


def _refuse_constant(text: str) -> Never:
    raise Refused(f"{text} is not a JSON number")


def _refuse_too_large(limit: int) -> Refused:
    return Refused(f"the body is longer than {limit} bytes", code="body_too_large", status=413)


def _refuse_too_deep() -> Refused:
    return Refused(f"the body is nested deeper than {DEEPEST} levels")
