"""Episodes of any environment that can be saved: those without `save` and `restore` carry their turns out again."""

import hashlib
from typing import cast

from learning.data.rows import Row
from learning.environments.protocol import Episode, HasStateName, Outcome, Savable, SavableEpisode
from schemas.errors import StepError


class Replayed:
    """An episode whose state is its turns; restoring it carries them out again.

    An episode depends on its row, its seed and its turns alone, so that it is in the same state then. Answers are
    compared with those of before.
    """

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.turns: list[tuple[str, str]] = []
        """Each turn, and a hash of its outcome."""

    def step(self, action: str) -> Outcome:
        """Carry out a turn of the model."""
        outcome = self.episode.step(action)
        self.turns.append((action, _hash(outcome)))
        return outcome

    def save(self) -> Row:
        """Return the turns so far."""
        return {"turns": [list(turn) for turn in self.turns]}

    def restore(self, saved: Row) -> None:
        """Carry out the turns of `saved`. Raise StepError if one has another outcome than before."""
        for number, (action, expected) in enumerate(saved["turns"], start=1):
            self.step(action)
            if self.turns[-1][1] != expected:
                raise StepError(
                    f"environment: turn {number} of an episode had another outcome when it was carried out again to go "
                    "back to an earlier state; make outcomes depend on row, seed and turns alone, or give the class of "
                    "episodes `save` and `restore`"
                )


class NamedReplayed(Replayed):
    """An episode whose environment names its states."""

    @property
    def state_name(self) -> str:
        """Return the name of the present state."""
        assert isinstance(self.episode, HasStateName)
        return self.episode.state_name


def make_savable(episode: Episode) -> SavableEpisode:
    """Return an episode itself if it can be saved and restored, else one that replays its turns."""
    if isinstance(episode, Savable):
        return cast("SavableEpisode", episode)
    return NamedReplayed(episode) if isinstance(episode, HasStateName) else Replayed(episode)


def _hash(outcome: Outcome) -> str:
    """Return a hash of what a turn led to, without its duration."""
    parts = (outcome.observation, outcome.done, outcome.reward, outcome.ok, outcome.kind, outcome.merit)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
