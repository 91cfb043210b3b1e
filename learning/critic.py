"""A critic beside the policy: its own network, optimiser and checkpoint. How a loop uses it:

    critic = Critic(stage.critic, policy, stage, inputs, seed)   # once; copies the policy's body as it is now
    batch = critic.values(batch)                    # before shape and advantage: token columns `value`, `value.<head>`
                                                    # (T,), path column `value_end` (P,); no gradient
    batch = with_advantages(algorithm, batch, step)  # an op such as `gae` leaves the token column `return`
    for mini in mini_batches(batch, …):
        critic.learn(mini, step)                    # one step of its own optimiser; cuts micro-batches by itself
        if not critic.warming(step): …              # the policy's step
    points |= critic.points(batch)                  # value_loss, explained_variance, … of this iteration
    critic.tensors(), critic.state()                # for the checkpoint; critic.load(tensors, state) puts them back

V is that of the state BEFORE a token, read where the token is predicted, so that observations and given beginnings have
no value of their own. Which tokens train it, `select` says, apart from what the policy's loss leaves out.

Shapes: M packed tokens, T sampled tokens, P paths, H heads, C width of the model.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learning.batch import Batch
from learning.checkpoint import below, load_optimizer_state, load_weights, optimizer_state, prefixed
from learning.lookup import Bound, bind
from learning.optimize import clip_gradients, make_optimizer
from learning.packed import packed_hidden
from learning.parallel import add_up, add_up_gradients, my_share
from learning.policy import Policy
from learning.split import micro_batches
from learning.supply import Columns
from schemas.critic import Critic as Block
from schemas.errors import StepError
from schemas.schedules import settled, value_at
from schemas.stages.rl import Rl

SPREAD = 0.1
"""Standard deviation of the first values of several heads, which must differ to stay apart; one alone starts at 0."""


class Network(nn.Module):
    """A policy's body with H values at every token; the head is kept in float32."""

    def __init__(self, policy: Policy, heads: int, seed: int):
        super().__init__()
        self.body = deepcopy(policy.model.base_model).requires_grad_(True)
        width = self.body.config.get_text_config().hidden_size
        self.head = nn.Linear(width, heads, device=policy.model.device)
        nn.init.zeros_(self.head.bias)
        nn.init.zeros_(self.head.weight)
        if heads > 1:
            drawn = torch.randn(heads, width, generator=torch.Generator().manual_seed(seed))
            self.head.weight.data.copy_(drawn * SPREAD / width**0.5)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Values before each sampled token (T, H), and after the last token of each path (P, H)."""
        packed = batch.packed.to(self.head.weight.device)
        hidden_MC = packed_hidden(self.body, packed)
        source_T = packed.source_M.cpu()[batch.sampled_T]
        if bool((source_T < 0).any()):
            raise StepError("critic: a completion without a prompt has no state to value; give every problem a prompt")
        rows = torch.cat([source_T, _ends(batch)]).to(hidden_MC.device)
        values_XH = self.head(hidden_MC.index_select(0, rows).float())
        return values_XH[: len(source_T)], values_XH[len(source_T) :]


class Critic:
    """The network, what trains it, and the points it has gathered since it was last asked."""

    def __init__(self, block: Block, policy: Policy, stage: Rl, inputs: Mapping[str, Path], seed: int):
        """Copy the body of `policy`; raises StepError for a function that does not exist."""
        self.block, self.stage = block, stage
        self.loss = bind(block.loss, "critic.loss", inputs)
        self.combine = bind(block.combine, "critic.combine", inputs)
        self.select = [bind(use, f"critic.select.{i}", inputs) for i, use in enumerate(block.select)]
        self.network = Network(policy, block.heads, seed)
        self.optimizer = make_optimizer(self.network, stage)
        self._told: dict[str, list[float]] = {}

    def warming(self, step: int) -> bool:
        """Whether only the critic learns at this step."""
        return step < self.block.warmup_steps

    @torch.no_grad()
    def values(self, batch: Batch) -> Batch:
        """Add the token columns `value` (of the heads together) and `value.<head>`, and the path column `value_end`."""
        heads = self.block.heads
        value_TH = torch.zeros(len(batch.sampled_T), heads, dtype=torch.float64)
        end_PH = torch.zeros(batch.num_paths, heads, dtype=torch.float64)
        placed = batch.with_tokens(place_critic=torch.arange(len(batch.sampled_T)))
        placed = placed.with_paths(place_critic=torch.arange(batch.num_paths))
        for micro in micro_batches(placed, self.stage.max_tokens_per_micro_batch):
            found_TH, found_PH = self.network(micro)
            value_TH[micro.sampled("place_critic")] = found_TH.cpu().double()
            end_PH[micro.paths["place_critic"]] = found_PH.cpu().double()
        columns = {f"value.{h}": value_TH[:, h] for h in range(heads)}
        return batch.with_tokens(value=self.combine(value_TH), **columns).with_paths(value_end=self.combine(end_PH))

    def learn(self, mini: Batch, step: int, controls: Mapping[str, float] | None = None) -> None:
        """One step of the optimiser on the mean loss of the selected tokens of a mini-batch.

        Raises StepError when no operation of the advantage pipeline gave targets.
        """
        if "return" not in mini.tokens:
            raise StepError("critic: nothing says what it is to predict; add `gae` or `diff` to `advantage`")
        keep_T, loss_of = self._selected(mini, step), self.loss.settled(controls or {})
        if not bool(keep_T.any()):
            return
        mini = mini.with_tokens(**{"w.critic": keep_T.double() / keep_T.sum()})
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for micro in my_share(micro_batches(mini, self.stage.max_tokens_per_micro_batch)):
            if bool((micro.sampled("w.critic") != 0).any()):
                loss = self._loss(loss_of, micro, step)
                loss.backward()
                total += float(loss.detach())
        add_up_gradients(self.network)
        rate = self.stage.learning_rate if self.block.learning_rate is None else self.block.learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = value_at(settled(rate, controls or {}), step)
        norm = clip_gradients(self.network, self.stage.max_grad_norm)
        self.optimizer.step()
        self._tell(value_loss=add_up([total])[0], value_grad_norm=norm)

    def points(self, batch: Batch) -> dict[str, float]:
        """Points for the curves since the last call; `explained_variance` is that of the values before the update."""
        value_T, return_T = batch.sampled("value"), batch.sampled("return")
        told = {name: sum(values) / len(values) for name, values in self._told.items()}
        self._told = {}
        if len(value_T):
            told |= {"value": float(value_T.mean()), "explained_variance": explained_variance(value_T, return_T)}
        return told

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments, for a checkpoint."""
        moments, _ = optimizer_state(self.optimizer)
        weights = dict(self.network.named_parameters())
        return prefixed("weights", weights) | prefixed("optimizer", moments)

    def state(self) -> list[Any]:
        """What belongs to a checkpoint beside tensors, as JSON."""
        return optimizer_state(self.optimizer)[1]

    def load(self, tensors: Mapping[str, Tensor], state: list[Any]) -> None:
        """Put back what `tensors` and `state` gave; raises StepError for those of another critic."""
        load_weights(dict(self.network.named_parameters()), below("weights", tensors))
        load_optimizer_state(self.optimizer, below("optimizer", tensors), state)

    def _loss(self, loss: Bound, micro: Batch, step: int) -> Tensor:
        """Σ w·ℓ over the tokens of a micro-batch, the mean over the heads."""
        value_TH, _ = self.network(micro)
        return_T, w_T = micro.sampled("return").to(value_TH), micro.sampled("w.critic").to(value_TH)
        total = value_TH.new_zeros(())
        for head, value_T in enumerate(value_TH.unbind(-1)):
            old_T = micro.sampled(f"value.{head}").to(value_TH)
            have = {"value_T": value_T, "value_old_T": old_T, "return_T": return_T}
            total = total + (loss.ask(step, have) * w_T).sum()
        return total / self.block.heads

    def _selected(self, batch: Batch, step: int) -> Tensor:
        """Tokens that train the critic (T,)."""
        keep_T = torch.ones(len(batch.sampled_T), dtype=torch.bool)
        for bound in self.select:
            keep_T = keep_T & bound.ask(step, Columns(batch, step=step))
        return keep_T

    def _tell(self, **values: float) -> None:
        for name, value in values.items():
            self._told.setdefault(name, []).append(value)


def explained_variance(value_T: Tensor, return_T: Tensor) -> float:
    """1 − Var(R − V) / Var(R): 1 for a perfect critic, 0 for a constant; 0 where the returns do not vary."""
    spread = float(return_T.var(correction=0))
    return 1 - float((return_T - value_T).var(correction=0)) / spread if spread else 0.0


def _ends(batch: Batch) -> Tensor:
    """Packed index of the last token of each path (P,)."""
    borders = batch.packed.cu_seqlens_S1.tolist()
    ends = []
    for segment in batch.leaves:
        while borders[segment] == borders[segment + 1]:
            segment = batch.parents[segment]
        ends.append(borders[segment + 1] - 1)
    return torch.tensor(ends, dtype=torch.long)
