"""What a teacher returns that does not write itself: whom to ask, and what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from learning.data.patterns import MatchTimeout, Pattern
from schemas.endpoint import Endpoint


@dataclass(frozen=True)
class Inquiry:
    """A prompt for a model behind an endpoint; the stage asks for as many replies as it wants, within its limits."""

    endpoint: Endpoint
    messages: Sequence[Mapping[str, str]]
    pattern: Pattern | None = None
    """What is kept of a reply: its last match, of it the first group, if any; null: the whole reply."""

    def kept(self, reply: str) -> str | None:
        """The completion in a reply; None where there is none, or the pattern finds none within its time."""
        try:
            found = reply if self.pattern is None else self.pattern.last(reply)
        except MatchTimeout:
            return None
        return (found or "").strip() or None
