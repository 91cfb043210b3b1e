"""Which rewards are called before a run."""

from schemas.use import RewardUse

REFUSING = frozenset({"structured.valid_json", "formats.brevity", "lengths.tiered", "composite.tiered"})
"""Rewards of posttrain that refuse options only when they are called."""


def is_called(use: RewardUse) -> bool:
    """Return whether a reward is called before a run: the user's own, and those that refuse options."""
    return ":" in use.use or use.use in REFUSING
