"""Scripts: speakers of a role that follow rules (the slot `roles.<role>.script`).

A script may ask for `role`, `turns` (`RoleTurn`s so far), `message` (what the turn order shows it), `row` and `rng`. It
returns what it says.
"""

from learning.problems.second_opinions import look_up_documents
from schemas.references import ChatRef


def library(message: str, *, data: ChatRef) -> str:
    """Say the document of `data` that is most similar to the message, and nothing if there is no message."""
    return look_up_documents([message], data)[0] if message.strip() else ""
