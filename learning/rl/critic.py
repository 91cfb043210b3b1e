"""A critic beside the policy: the auxiliary whose targets an operation of `advantage` gives.

An operation such as `gae` asks for its column `value` (`value_end` for the state after the last token of a path) and
leaves the token column `return`. All else is as in `learning.rl.auxiliary`.
"""

from collections.abc import Mapping
from pathlib import Path

from learning.batch.batch import Batch
from learning.models.policy import Policy
from learning.parallel.group import ALONE, Group
from learning.rl.auxiliary import Learner, explained_variance
from schemas.critic import Critic as Block
from schemas.errors import StepError
from schemas.stages.rl import Rl

__all__ = ["Critic", "explained_variance"]

POINTS = {"loss": "value_loss", "grad_norm": "value_grad_norm", "mean": "value"}


class Critic(Learner):
    """V of every state, in the columns `value` and `value.<head>`."""

    def __init__(
        self,
        block: Block,
        policy: Policy,
        stage: Rl,
        inputs: Mapping[str, Path],
        seed: int,
        group: Group = ALONE,
    ):
        """Copy the body of `policy`, or take up what `model` holds; raises StepError for what does not exist."""
        super().__init__("critic", "critic", block, policy, stage, inputs, seed, group)
        self.base, self.aim = "value", "return"

    def learn(self, mini: Batch, step: int, controls: Mapping[str, float] | None = None) -> None:
        """One step of its optimiser; raises StepError when no operation of the advantage pipeline gave targets."""
        if self.aim not in mini.tokens:
            raise StepError(
                "critic: nothing says what it is to predict; add `gae` or `value_difference` to `advantage`"
            )
        super().learn(mini, step, controls)

    def _point(self, name: str) -> str:
        return POINTS.get(name, name)
