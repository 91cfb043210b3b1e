"""Formats of rows that files have, and what rows of each can become."""

from typing import Literal

Emit = Literal["chat", "preference_pairs", "step_labels", "prompts"]
Format = Literal[
    "messages",
    "alpaca",
    "prompt_completion",
    "text",
    "preference",
    "scored",
    "ratings",
    "labels",
    "steps",
    "prompts",
    "rows",
]
ROWS = "rows"
"""Table of a query that has the rows of the source."""
EMITS: dict[Format, tuple[Emit, ...]] = {
    "messages": ("chat",),
    "alpaca": ("chat",),
    "prompt_completion": ("chat",),
    "text": ("chat",),
    "preference": ("preference_pairs",),
    "scored": ("preference_pairs",),
    "ratings": ("preference_pairs",),
    "labels": ("preference_pairs",),
    "steps": ("step_labels",),
    "prompts": ("prompts",),
    "rows": ("chat", "preference_pairs", "step_labels", "prompts"),
}
"""Artifact types that rows of a format can become."""
