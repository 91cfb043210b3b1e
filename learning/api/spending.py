"""The account of a step for its questions to servers: the folder of stored answers, and the limits of spending."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SpendingAccount:
    """Plain values that can be sent to another process; the amount spent is read from the folder.

    `folder` is shared by all steps of a checkout; `step` is the key of the step that pays.
    """

    folder: Path
    step: str
    max_tokens: int | None = None
    """Limit of paid tokens, prompts and answers; None: no limit."""
    max_cost: float | None = None
    """Limit of money; None: no limit."""
