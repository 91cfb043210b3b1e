"""Where a step's questions to servers go through: which folder keeps the answers, and in whose name they are asked."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SpendingAccount:
    """Plain values, so that it can be handed to another process; what was spent is looked up in the folder.

    `folder` is shared by all steps of a checkout; `step` is the key of the step that asks.
    """

    folder: Path
    step: str
    max_tokens: int | None = None
    """Tokens that the step may pay for, prompts and answers; null: no limit."""
    max_cost: float | None = None
    """Likewise money."""
