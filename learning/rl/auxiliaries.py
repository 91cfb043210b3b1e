"""All networks beside the policy of a stage, together: its critic and its auxiliaries, by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from learning.batch.batch import Batch
from learning.models.checkpoint import below, prefixed
from learning.models.policy import Policy
from learning.parallel.group import ALONE, Group
from learning.rl.auxiliary import Auxiliary, Learner
from learning.rl.critic import Critic
from schemas.stages.rl import Rl


class Auxiliaries:
    """What a loop does with each of them, done with all; `parts` are those there are."""

    def __init__(self, stage: Rl, policy: Policy, inputs: Mapping[str, Path], seed: int, group: Group = ALONE) -> None:
        self.parts: dict[str, Learner] = {}
        if stage.critic is not None:
            self.parts["critic"] = Critic(stage.critic, policy, stage, inputs, seed, group)
        for name, block in stage.auxiliary_models.items():
            self.parts[name] = Auxiliary(name, block, policy, stage, inputs, seed, group)

    def values(self, batch: Batch) -> Batch:
        """Add the columns of all."""
        for part in self.parts.values():
            batch = part.values(batch)
        return batch

    def with_targets(self, batch: Batch, step: int, controls: Mapping[str, float], **have: Any) -> Batch:
        """Add what each is to predict, once the advantages are there."""
        for part in self.parts.values():
            if isinstance(part, Auxiliary):
                batch = part.with_targets(batch, step, controls, **have)
        return batch

    def warming(self, step: int) -> bool:
        """Whether the policy waits at this step."""
        return any(part.warming(step) for part in self.parts.values())

    def learn(self, mini: Batch, step: int, controls: Mapping[str, float] | None = None) -> None:
        """One optimiser step of each."""
        for part in self.parts.values():
            part.learn(mini, step, controls)

    def refresh(self, step: int) -> None:
        """Bring slow copies nearer, after an iteration."""
        for part in self.parts.values():
            if isinstance(part, Auxiliary):
                part.refresh(step)

    def points(self, batch: Batch) -> dict[str, float]:
        """Points for the curves since the last call."""
        return {name: value for part in self.parts.values() for name, value in part.points(batch).items()}

    def tensors(self) -> dict[str, Tensor]:
        """Weights, moments and copies, for a checkpoint."""
        return {k: t for name, part in self.parts.items() for k, t in prefixed(name, part.tensors()).items()}

    def state(self) -> dict[str, Any]:
        """What belongs to a checkpoint beside tensors, as JSON."""
        return {name: part.state() for name, part in self.parts.items()}

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `state` gave; raises StepError for those of other networks."""
        for name, part in self.parts.items():
            part.load(below(name, tensors), state[name])
