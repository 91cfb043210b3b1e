"""Environment `grounded`: another environment, whose last turn is an answer that has to agree with what was shown."""

from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Episode, Outcome
from learning.lookup import Bound, RewardFunction
from schemas.use import EnvUse


class Environment:
    """Play `of`; the answer that ends an episode earns 1 if it is sound and was shown, part by part (DeepTravel 2025).

    First the reward `by` scores the answer as a whole: below `at_least`, or without a score, it earns 0 and its parts
    are not looked at. The parts are the texts between `separator`; each has to be a part of an answer that `of` gave in
    this episode, so that nothing is invented. With `share` an answer earns the share of its parts that were shown.
    Other turns earn what `of` pays for them.
    """

    def __init__(
        self,
        *,
        of: EnvUse,
        by: RewardFunction | None = None,
        at_least: float = 1.0,
        separator: Annotated[str, Field(min_length=1)] = ",",
        share: bool = False,
    ) -> None:
        self.inner, self.at_least, self.separator, self.share = build_environment(of, {}), at_least, separator, share
        self.by: Bound | None = by  # pyright: ignore[reportAttributeAccessIssue] — bound like all options

    def begin(self, row: Row, seed: int) -> "Grounded":
        """Return an episode of `of`."""
        return Grounded(self, row, self.inner.begin(row, seed))

    def is_sound(self, row: Row, answer: str) -> bool:
        """Return whether the answer as a whole passes."""
        if self.by is None:
            return True
        (score,) = self.by.ask(0, {"rows": [row], "completions": [answer], "step": 0})
        return score is not None and score >= self.at_least

    def list_parts(self, text: str) -> list[str]:
        """Return the texts between separators and line ends, without empty ones."""
        return [part.strip() for line in text.splitlines() for part in line.split(self.separator) if part.strip()]

    def compare(self, answer: str, shown: set[str]) -> float:
        """Return what an answer earns whose parts are compared with what was shown."""
        parts = self.list_parts(answer)
        known = sum(part in shown for part in parts)
        return known / len(parts) if parts and (self.share or known == len(parts)) else 0.0


class Grounded:
    """An episode with the parts of what it has shown."""

    def __init__(self, world: Environment, row: Row, episode: Episode) -> None:
        self.world, self.row, self.episode = world, row, episode
        self.shown: set[str] = set()

    def step(self, action: str) -> Outcome:
        """Carry out a turn; check it if it ends the episode."""
        outcome = self.episode.step(action)
        if not outcome.done:
            if outcome.ok:
                self.shown |= set(self.world.list_parts(outcome.observation))
            return outcome
        earned = self.world.compare(action, self.shown) if self.world.is_sound(self.row, action) else 0.0
        values = {name: getattr(outcome, name) for name in Outcome.__dataclass_fields__}
        return Outcome(**{**values, "reward": outcome.reward + earned})
