"""A rollout as an extractor sees it: the model's turns, the observations, and the score."""

from dataclasses import dataclass
from typing import Any

from learning.data.chat import decode
from learning.samples.engine_protocol import Turn


@dataclass(frozen=True)
class Rollout:
    """One completion, split into turns."""

    said: tuple[str, ...]
    """Texts of the model's turns, at least one."""
    heard: tuple[str, ...]
    """The observation after each turn; empty after the last one."""
    score: float

    def told(self) -> dict[str, Any]:
        """Return the rollout as plain values."""
        return {"said": list(self.said), "heard": list(self.heard), "score": self.score}


def make_rollout(tokenizer: Any, ids: list[int], turns: list[Turn], score: float) -> Rollout:
    """Return the rollout of a completion's tokens; tokens after the complete `turns` are a further turn."""
    said, heard, place = [], [], 0
    for turn in turns:
        said.append(decode(tokenizer, ids[place : place + turn.sampled]))
        heard.append(decode(tokenizer, ids[place + turn.sampled : place + turn.sampled + turn.observed]))
        place += turn.sampled + turn.observed
    if place < len(ids) or not said:
        said.append(decode(tokenizer, ids[place:]))
        heard.append("")
    return Rollout(tuple(said), tuple(heard), score)
