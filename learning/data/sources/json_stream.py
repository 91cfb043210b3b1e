"""JSON values as rows: parsed strictly, and those of a list in a file of any size one at a time."""

import codecs
import json
import math
from collections.abc import Iterator
from typing import Any, BinaryIO

from learning.data.sources.records import LONGEST_ROW
from schemas.errors import StepError

CHUNK = 1 << 20
"""Bytes that are read at a time."""
BLANK = " \t\r\n"


class StrictParser:
    """Parses JSON; `repeated` is a key that an object of the last value has twice, of which only one would be read."""

    def __init__(self) -> None:
        self.repeated: str | None = None
        self.decoder = json.JSONDecoder(
            parse_constant=_refuse_constant, parse_float=_read_finite, object_pairs_hook=self._collect
        )

    def parse(self, text: str) -> Any:
        """Return the value of a text. Raise ValueError or RecursionError if it is no JSON."""
        self.repeated = None
        return self.decoder.decode(text)

    def _collect(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            names = [name for name, _ in pairs]
            self.repeated = next(name for name in names if names.count(name) > 1)
        return values


def iterate_json(file: BinaryIO, name: str, parser: StrictParser) -> Iterator[Any]:
    """Yield the items of a JSON list; one item and a chunk are in memory.

    Raise StepError, naming the number of the item, at the first place that is no JSON: what follows cannot be read.
    """
    decoder = parser.decoder
    window = _Window(file)
    window.skip("[")
    number = 0
    if window.peek() == "]":
        window.skip("]")
    else:
        while True:
            number += 1
            parser.repeated = None
            yield _parse_item(decoder, window, f"{name}, row {number}")
            mark = window.peek()
            if mark not in (",", "]"):
                raise StepError(f"{name}, row {number}: {mark!r} follows where `,` or `]` should; the file is not JSON")
            window.skip(mark)
            if mark == "]":
                break
    if rest := window.peek():
        raise StepError(f"{name}: {rest!r} follows after the end of the list")


def _refuse_constant(text: str) -> Any:
    """Raise ValueError for NaN and Infinity, which Python's parser accepts and JSON does not have."""
    raise ValueError(f"{text} is no JSON value")


def _read_finite(text: str) -> float:
    """Return a number. Raise ValueError for one such as 1e999, which Python reads as Infinity."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


class _Window:
    """The part of a file that is decoded and not yet parsed."""

    def __init__(self, file: BinaryIO):
        self.file, self.text, self.at, self.ended = file, "", 0, False
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()

    def read(self, size: int = CHUNK) -> None:
        content = self.file.read(size)
        self.ended = not content
        self.text, self.at = self.text[self.at :] + self.decoder.decode(content, self.ended), 0

    def peek(self) -> str:
        """Return the next character that is not blank, empty at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in BLANK:
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self.read()

    def skip(self, mark: str) -> None:
        self.peek()
        self.at += len(mark)


def _parse_item(decoder: json.JSONDecoder, window: _Window, place: str) -> Any:
    window.peek()
    size = CHUNK
    while True:
        try:
            value, end = decoder.raw_decode(window.text, window.at)
        except (ValueError, RecursionError) as error:
            # An item that is cut off and one that is no JSON look the same until more of the file is read.
            if window.ended or len(window.text) - window.at > LONGEST_ROW:
                raise StepError(f"{place}: no JSON, or longer than {LONGEST_ROW >> 20} MiB: {error}") from error
        else:
            if end < len(window.text) or window.ended:
                window.at = end
                return value
        window.read(size)
        size *= 2
