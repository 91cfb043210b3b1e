"""A rollout as an extractor sees it: the model's turns, the observations, and the score."""

from dataclasses import dataclass
from typing import Any

from learning.data.chat import decode
from learning.samples.engine_protocol import Turn
from schemas.base import JsonObject


@dataclass(frozen=True)
class Rollout:
    """One completion, split into turns."""

    actions: tuple[str, ...]
    """Texts of the model's turns, at least one."""
    observations: tuple[str, ...]
    """The observation after each turn; empty after the last one."""
    score: float

    def to_json(self) -> JsonObject:
        """Return the rollout as plain values."""
        return {"actions": list(self.actions), "observations": list(self.observations), "score": self.score}


def make_rollout(tokenizer: Any, ids: list[int], turns: list[Turn], score: float) -> Rollout:
    """Return the rollout of a completion's tokens; tokens after the complete `turns` are a further turn."""
    actions, observations, place = [], [], 0
    for turn in turns:
        actions.append(decode(tokenizer, ids[place : place + turn.sampled]))
        observations.append(decode(tokenizer, ids[place + turn.sampled : place + turn.sampled + turn.observed]))
        place += turn.sampled + turn.observed
    if place < len(ids) or not actions:
        actions.append(decode(tokenizer, ids[place:]))
        observations.append("")
    return Rollout(tuple(actions), tuple(observations), score)
