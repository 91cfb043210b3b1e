"""Questions put to other models: filled templates for judges and partners, and what a remote teacher is asked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learning.data.patterns import MatchTimeout, Pattern
from schemas.endpoint import Endpoint
from schemas.errors import StepError

FIELD = re.compile(r"\{(\w+)\}")


def fill_template(template: str, fields: Mapping[str, str]) -> str:
    """Return the template with `{name}` replaced, once; raises StepError for an unknown name."""

    def put(match: re.Match[str]) -> str:
        if match[1] not in fields:
            raise StepError(f"template: no field {match[0]}; there is: {', '.join(f'{{{n}}}' for n in fields)}")
        return fields[match[1]]

    return FIELD.sub(put, template)


def make_question(template: str, row: Mapping[str, Any], **more: str) -> list[dict[str, str]]:
    """Return the message put to a judge: the template with the problem's `{prompt}` and `{answer}`, and `more`."""
    prompt = "\n".join(message["content"] for message in row["prompt"])
    fields = {"prompt": prompt, "answer": row.get("answer") or "", **more}
    return [{"role": "user", "content": fill_template(template, fields)}]


@dataclass(frozen=True)
class Inquiry:
    """A prompt for a remote teacher; the stage requests replies to it within its limits."""

    endpoint: Endpoint
    messages: Sequence[Mapping[str, str]]
    pattern: Pattern | None = None
    """Keeps the last match of a reply, or its first group if it has one; None keeps the whole reply."""

    def kept(self, reply: str) -> str | None:
        """Return the completion in a reply; None where there is none, or the pattern finds none within its time."""
        try:
            completion = reply if self.pattern is None else self.pattern.last(reply)
        except MatchTimeout:
            return None
        return (completion or "").strip() or None
