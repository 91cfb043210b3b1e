"""Decode tokens as they arrive: complete characters only, holding back the possible beginning of a stop string."""

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "�"
"""Replacement character that a tokenizer returns for an incomplete character."""


class DecodedText:
    """The text of one completion; `add` returns what may be sent now.

    Only the tokens since the last complete character are decoded again, so a long completion stays cheap.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()):
        self.tokenizer, self.stops = tokenizer, tuple(stops)
        self.ids: list[int] = []
        self.begin = self.read = 0
        self.text = ""
        self.sent = 0
        self.stopped = False

    def add(self, token: int) -> str:
        """Take a token; return text that is certain and not returned yet. Set `stopped` at a stop string."""
        self.ids.append(token)
        text = self._decode(self.ids[self.begin :])
        if not text.endswith(REPLACEMENT):
            self._take(text)
        return self._return_until(len(self.text) - self._count_held_back())

    def finish(self) -> str:
        """Return the text that was held back, after the last token."""
        if not self.stopped and self.read < len(self.ids):
            self._take(self._decode(self.ids[self.begin :]))
        return self._return_until(len(self.text))

    def _take(self, text: str) -> None:
        returned = self._decode(self.ids[self.begin : self.read])
        looked = max(0, len(self.text) - max(map(len, self.stops), default=1) + 1)
        self.text += text[len(returned) :]
        self.begin, self.read = self.read, len(self.ids)
        positions = [at for stop in self.stops if (at := self.text.find(stop, looked)) >= 0]
        if positions:
            self.text, self.stopped = self.text[: min(positions)], True

    def _count_held_back(self) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        if self.stopped:
            return 0
        longest = max(map(len, self.stops), default=1) - 1
        for length in range(min(longest, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self.stops):
                return length
        return 0

    def _return_until(self, end: int) -> str:
        new = self.text[self.sent : end]
        self.sent = max(self.sent, end)
        return new

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))
