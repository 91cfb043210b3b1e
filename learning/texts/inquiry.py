"""What a teacher returns that does not write itself: whom to ask, and what."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.endpoint import Endpoint


@dataclass(frozen=True)
class Inquiry:
    """A prompt for a model behind an endpoint; the stage asks for as many replies as it wants, within its limits."""

    endpoint: Endpoint
    messages: Sequence[Mapping[str, str]]
    pattern: re.Pattern[str] | None = None
    """What is kept of a reply: its last match, of it the first group, if any; null: the whole reply."""

    def kept(self, reply: str) -> str | None:
        """The completion in a reply; None where there is none."""
        if self.pattern is None:
            return reply.strip() or None
        found = [match[1] if self.pattern.groups else match[0] for match in self.pattern.finditer(reply)]
        return (found[-1] or "").strip() or None if found else None
