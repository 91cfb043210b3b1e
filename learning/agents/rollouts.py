"""What an extractor is shown of a rollout: what the model said turn by turn, what it heard, and the score."""

from dataclasses import dataclass
from typing import Any

from learning.data.chat import decode
from learning.samples.engine_protocol import Turn


@dataclass(frozen=True)
class Rollout:
    """One completion, taken apart into turns."""

    said: tuple[str, ...]
    """Texts of the model's turns, at least one."""
    heard: tuple[str, ...]
    """What was observed after each of them; after the last one nothing."""
    score: float

    def told(self) -> dict[str, Any]:
        """As plain values."""
        return {"said": list(self.said), "heard": list(self.heard), "score": self.score}


def make_rollout(tokenizer: Any, ids: list[int], turns: list[Turn], score: float) -> Rollout:
    """A completion's tokens, of which `turns` tells the turns that ended; what follows them is a further one."""
    said, heard, place = [], [], 0
    for turn in turns:
        said.append(decode(tokenizer, ids[place : place + turn.sampled]))
        heard.append(decode(tokenizer, ids[place + turn.sampled : place + turn.sampled + turn.observed]))
        place += turn.sampled + turn.observed
    if place < len(ids) or not said:
        said.append(decode(tokenizer, ids[place:]))
        heard.append("")
    return Rollout(tuple(said), tuple(heard), score)
