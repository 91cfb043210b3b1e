"""Decode tokens as they arrive: complete characters only, holding back the possible beginning of a stop string."""

from collections.abc import Sequence
from typing import Any

HALF = "�"
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
        self.said = 0
        self.stopped = False

    def add(self, token: int) -> str:
        """Take a token; return text that is certain and not returned yet. Set `stopped` at a stop string."""
        self.ids.append(token)
        whole = self._decode(self.ids[self.begin :])
        if not whole.endswith(HALF):
            self._take(whole)
        return self._say(len(self.text) - self._held())

    def finish(self) -> str:
        """Return the text that was held back, after the last token."""
        if not self.stopped and self.read < len(self.ids):
            self._take(self._decode(self.ids[self.begin :]))
        return self._say(len(self.text))

    def _take(self, whole: str) -> None:
        known = self._decode(self.ids[self.begin : self.read])
        looked = max(0, len(self.text) - max(map(len, self.stops), default=1) + 1)
        self.text += whole[len(known) :]
        self.begin, self.read = self.read, len(self.ids)
        positions = [at for stop in self.stops if (at := self.text.find(stop, looked)) >= 0]
        if positions:
            self.text, self.stopped = self.text[: min(positions)], True

    def _held(self) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        if self.stopped:
            return 0
        longest = max(map(len, self.stops), default=1) - 1
        for length in range(min(longest, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self.stops):
                return length
        return 0

    def _say(self, end: int) -> str:
        new = self.text[self.said : end]
        self.said = max(self.said, end)
        return new

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))
