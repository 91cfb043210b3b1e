"""Environment `profiled`: another environment, in which every turn begins with what the model believes of its partner.

A problem's metadata has the partner's profile: `{"facts": {"city": "rome", "pet": "cat"}}`, as `interview` reads it.
"""

import json
from dataclasses import replace

from learning.data.profiles import compute_profile_f1, split_profile
from learning.data.rows import Row, read_metadata
from learning.environments.interview import read_partner
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Outcome, SavableEpisode
from learning.environments.replayed import make_savable
from learning.lookup import Bound, RewardFunction
from schemas.use import EnvUse


class Environment:
    """Play `of` with turns such as `<profile>city=rome</profile>Do you like the sea?` (RLPA, Zhao et al. 2025).

    `of` gets what follows the profile. Every turn earns, besides what `of` pays, `weight` times the F1 score of the
    stated slots and values among those of the partner, and `response_weight` times what the reward `response` gives
    the rest of the turn. That one sees a row whose `facts` are those of the *stated* profile: a reply that suits a
    wrong profile is rewarded as one that suits the right one. A turn without a profile earns 0 and is not passed on.
    """

    def __init__(
        self,
        *,
        of: EnvUse,
        tag: str = "profile",
        weight: float = 1.0,
        response: RewardFunction | None = None,
        response_weight: float = 1.0,
    ) -> None:
        self.inner, self.tag, self.weight, self.response_weight = (
            build_environment(of, {}),
            tag,
            weight,
            response_weight,
        )
        self.response: Bound | None = response  # pyright: ignore[reportAttributeAccessIssue] — bound like all options

    def begin(self, row: Row, seed: int) -> "Profiled":
        """Return an episode of `of`. Raise StepError for a row without a profile."""
        return Profiled(self, row, read_partner(row).facts, make_savable(self.inner.begin(row, seed)))

    def judge(self, row: Row, stated: dict[str, str], said: str) -> float:
        """Return what a reply is worth to a partner with the stated profile; 0 without a reward `response`."""
        if self.response is None:
            return 0.0
        imagined = row | {"metadata": json.dumps(read_metadata(row) | {"facts": stated})}
        (score,) = self.response.ask(0, {"rows": [imagined], "completions": [said], "step": 0})
        return self.response_weight * (0.0 if score is None else score)


class Profiled:
    """An episode of `of`, and the true profile."""

    def __init__(self, world: Environment, row: Row, true: dict[str, str], episode: SavableEpisode) -> None:
        self.world, self.row, self.true, self.episode = world, row, true, episode

    def step(self, action: str) -> Outcome:
        """Carry out what follows the profile, and add what the profile and the reply earn."""
        stated, said = split_profile(action, self.world.tag)
        if stated is None:
            return Outcome(f"begin with <{self.world.tag}>slot=value</{self.world.tag}>", ok=False)
        outcome = self.episode.step(said)
        matched = self.world.weight * compute_profile_f1(stated, self.true)
        return replace(outcome, reward=outcome.reward + matched + self.world.judge(self.row, stated, said))

    def save(self) -> Row:
        """Return the state of the episode of `of`."""
        return self.episode.save()

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.episode.restore(saved)
