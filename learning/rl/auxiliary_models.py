"""Networks that are trained next to the policy: the critic and the auxiliary models of a stage.

Each adds columns to a batch, has targets, an optimiser and a part of the checkpoint of its own. A loop uses them so:

    models = AuxiliaryModels(stage, policy, inputs, seed)  # while the policy is as it started
    batch = models.add_values(batch)                   # before advantages: the column of each, without gradient
    batch = models.add_targets(batch, step, …)         # what each is to predict
    for mini in mini_batches(batch, …):
        models.update(mini, step)                      # one optimiser step of each
        if not models.is_warming_up(step): …           # the policy's step
    metrics |= models.metrics(batch)                   # <name>/loss, <name>/explained_variance, … of this iteration
    models.refresh(step)                               # slow copies
    models.tensors(), models.state()                   # for the checkpoint; models.load(tensors, state) restores them

Shapes: T sampled tokens, P paths.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import ColumnView, locate_in_path, take_next_state
from learning.lookup import bind
from learning.models.checkpoint import add_prefix, load_weights, strip_prefix
from learning.models.policy import Policy
from learning.parallel.group import ALONE, Group
from learning.rl.trained_network import TrainedNetwork
from learning.samples.sample import Row, States
from schemas.auxiliary import NEXT
from schemas.auxiliary import Auxiliary as AuxiliaryBlock
from schemas.base import JsonObject
from schemas.critic import Critic as CriticBlock
from schemas.errors import StepError
from schemas.stages.rl import Rl


class AuxiliaryModel(TrainedNetwork):
    """One of a stage's auxiliary models: a function gives its targets, perhaps from the values of a slow copy."""

    def __init__(
        self,
        name: str,
        block: AuxiliaryBlock,
        policy: Policy,
        stage: Rl,
        inputs: Mapping[str, Path],
        seed: int,
        group: Group = ALONE,
    ) -> None:
        """Copy the body of `policy`, or load `model`. Raise StepError for what does not exist."""
        port = f"auxiliary_models.{name}"
        super().__init__(name, port, block, policy, stage, inputs, seed, group)
        self.target_network = block.target_network
        self.target = bind(block.target, f"{port}.target", inputs) if block.target else None
        if self.target is None:
            self.optimizer = None
        ahead = self.target is not None and any(word in self.target.asks for word in NEXT)
        self.slow: Any = deepcopy(self.network).requires_grad_(False) if block.target_network and ahead else None

    def add_targets(
        self,
        batch: Batch,
        step: int,
        controls: Mapping[str, float] | None = None,
        states: States | None = None,
        rows: Sequence[Row] | None = None,
    ) -> Batch:
        """Add what it is to predict: `target:<name>`; `states` and `rows` are as for `with_advantages`."""
        if self.target is None:
            return batch
        supplied: dict[str, object] = {"step": step}
        supplied |= {} if states is None else {"states": states}
        supplied |= {} if rows is None else {"rows": rows}
        columns = ColumnView(batch, **supplied)
        if any(word in self.target.asks for word in NEXT):
            for word, value_T in self._ahead(batch).items():
                columns[word] = value_T
        target_T = self.target.settled(controls or {}).ask(step, columns).double()
        if not self.of_paths:
            return batch.with_tokens(**{self.aim: target_T})
        last_T = locate_in_path(batch.path_T)[1] == 0
        target_P = torch.full((batch.num_paths,), torch.nan, dtype=torch.float64)
        target_P[batch.path_T[last_T]] = target_T[last_T]
        return batch.with_paths(**{self.aim: target_P})

    def _ahead(self, batch: Batch) -> dict[str, Tensor]:
        """Return values of the state after each token: by the slow copy, or by the network itself."""
        tokens, paths = self._read(self.slow or self.network, batch)
        best, mean = ("_max", "_mean") if self.reads == "action" else ("", "")
        pairs = {"next_T": best, "next_mean_T": mean}
        return {
            word: take_next_state(tokens[suffix], paths[f"_end{suffix}"], batch)
            for word, suffix in pairs.items()
            if suffix in tokens and f"_end{suffix}" in paths
        }

    @torch.no_grad()
    def refresh(self, step: int) -> None:
        """Move the slow copy towards the network, where that is due after iteration `step` (0-based)."""
        if (
            self.slow is not None
            and self.target_network is not None
            and (step + 1) % self.target_network.sync_steps == 0
        ):
            for old, new in zip(self.slow.parameters(), self.network.parameters(), strict=True):
                old.lerp_(new.to(old.dtype), self.target_network.mixup_alpha)

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, moments and the slow copy, for a checkpoint."""
        return super().tensors() | add_prefix("slow", {} if self.slow is None else dict(self.slow.named_parameters()))

    def load(self, tensors: Mapping[str, Tensor], state: list[Any]) -> None:
        """Restore what `tensors` and `state` returned. Raise StepError for those of another network."""
        super().load(tensors, state)
        if self.slow is not None:
            load_weights(dict(self.slow.named_parameters()), strip_prefix("slow", tensors))


class Critic(TrainedNetwork):
    """V of every state, in the columns `value` and `value.<head>`; an operation of `advantage` gives its targets.

    An operation such as `gae` reads the column `value` (`value_end` for the state after the last token of a path) and
    leaves the token column `return`.
    """

    METRICS: ClassVar = {"loss": "value_loss", "grad_norm": "value_grad_norm", "mean": "value"}

    def __init__(
        self,
        block: CriticBlock,
        policy: Policy,
        stage: Rl,
        inputs: Mapping[str, Path],
        seed: int,
        group: Group = ALONE,
    ) -> None:
        """Copy the body of `policy`, or load `model`. Raise StepError for what does not exist."""
        super().__init__("critic", "critic", block, policy, stage, inputs, seed, group)
        self.base, self.aim = "value", "return"

    def update(self, mini: Batch, step: int, controls: Mapping[str, float] | None = None) -> None:
        """Make one optimiser step. Raise StepError when no operation of the advantage pipeline gave targets."""
        if self.aim not in mini.tokens:
            raise StepError(
                "critic: nothing says what it is to predict; add `gae` or `value_difference` to `advantage`"
            )
        super().update(mini, step, controls)

    def _metric(self, name: str) -> str:
        return self.METRICS.get(name, name)


class AuxiliaryModels:
    """The critic and the auxiliary models of a stage, by name."""

    def __init__(self, stage: Rl, policy: Policy, inputs: Mapping[str, Path], seed: int, group: Group = ALONE) -> None:
        self.networks: dict[str, TrainedNetwork] = {}
        if stage.critic is not None:
            self.networks["critic"] = Critic(stage.critic, policy, stage, inputs, seed, group)
        for name, block in stage.auxiliary_models.items():
            self.networks[name] = AuxiliaryModel(name, block, policy, stage, inputs, seed, group)

    @property
    def _models(self) -> list[AuxiliaryModel]:
        return [network for network in self.networks.values() if isinstance(network, AuxiliaryModel)]

    def add_values(self, batch: Batch) -> Batch:
        """Add the columns of all."""
        for network in self.networks.values():
            batch = network.add_values(batch)
        return batch

    def add_targets(
        self, batch: Batch, step: int, controls: Mapping[str, float], states: States, rows: Sequence[Row]
    ) -> Batch:
        """Add what each is to predict, once the advantages are there."""
        for model in self._models:
            batch = model.add_targets(batch, step, controls, states, rows)
        return batch

    def is_warming_up(self, step: int) -> bool:
        """Return whether the policy waits at this step."""
        return any(network.is_warming_up(step) for network in self.networks.values())

    def update(self, mini: Batch, step: int, controls: Mapping[str, float] | None = None) -> None:
        """Make one optimiser step of each."""
        for network in self.networks.values():
            network.update(mini, step, controls)

    def refresh(self, step: int) -> None:
        """Move slow copies, after an iteration."""
        for model in self._models:
            model.refresh(step)

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Return metrics since the last call."""
        return {name: value for network in self.networks.values() for name, value in network.metrics(batch).items()}

    def publish(self, policy: Policy, output: Callable[[str], Path]) -> None:
        """Write those that the stage publishes; `output` gives the folder of an artifact type."""
        for network in self.networks.values():
            if network.block.publish:
                network.save(policy, output(network.type))

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, moments and copies, for a checkpoint."""
        return {k: t for name, network in self.networks.items() for k, t in add_prefix(name, network.tensors()).items()}

    def state(self) -> JsonObject:
        """Return what belongs to a checkpoint besides tensors, as JSON."""
        return {name: network.state() for name, network in self.networks.items()}

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore what `tensors` and `state` returned. Raise StepError for those of other networks."""
        for name, network in self.networks.items():
            network.load(strip_prefix(name, tensors), state[name])
