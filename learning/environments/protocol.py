"""What every environment speaks: the text of a turn in, what came of it out.

An environment is one file in this package with one class `Environment`, made as `Environment(**options)`; what is after
the star of its constructor are options of the recipe. It holds no state of an episode, so that one serves many at once.
An episode is a function of its row, its seed and the turns so far: one that was interrupted is begun anew and given the
same turns again. Its steps may take long; they run in threads, never two of one episode at a time.
"""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Outcome:
    """What came of a turn."""

    observation: str = ""
    """Shown to the model as the next message, where the episode goes on."""
    done: bool = False
    """Whether the episode ends here."""
    reward: float = 0.0
    """Earned by this turn alone."""
    seconds: float | None = None
    """What it took on the environment's own clock; None: what it took in fact."""
    ok: bool = True
    """Whether the turn could be understood and carried out."""


class Episode(Protocol):
    """One problem under way."""

    def step(self, action: str) -> Outcome:
        """Carry out a turn of the model: its text, without special tokens."""
        ...


class EnvironmentProtocol(Protocol):
    """Makes episodes."""

    def begin(self, row: dict[str, Any], seed: int) -> Episode:
        """An episode of a problem; whatever is random in it comes from `seed`.

        Raises StepError for a row that lacks what the environment needs.
        """
        ...
