"""Templates of questions: what a judge or a partner is shown of a problem and of a completion."""

import re
from collections.abc import Mapping
from typing import Any

from schemas.errors import StepError

FIELD = re.compile(r"\{(\w+)\}")


def filled(template: str, fields: Mapping[str, str]) -> str:
    """The template with `{name}` replaced; braces in what is put in stay. Raises StepError for an unknown name."""

    def put(found: re.Match[str]) -> str:
        if found[1] not in fields:
            raise StepError(f"template: no field {found[0]}; there is: {', '.join(f'{{{n}}}' for n in fields)}")
        return fields[found[1]]

    return FIELD.sub(put, template)


def question(template: str, row: Mapping[str, Any], **more: str) -> list[dict[str, str]]:
    """The message put to a judge: the template with the problem's `{prompt}` and `{answer}`, and `more`."""
    prompt = "\n".join(message["content"] for message in row["prompt"])
    fields = {"prompt": prompt, "answer": row.get("answer") or "", **more}
    return [{"role": "user", "content": filled(template, fields)}]
