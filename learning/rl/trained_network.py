"""A network that is trained next to the policy: its columns, its optimiser and its part of the checkpoint.

The `select` of a network names the tokens that train it, whatever the policy's loss leaves out. Its columns are called
`aux:<name>` in a batch, so that they cannot be taken for the batch's own.

Shapes: T sampled tokens, P paths, X what is valued (T, or P for completions), H heads.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learning.auxiliary_networks.heads import make_network, save_network
from learning.batch.batch import Batch
from learning.batch.columns import AUXILIARY, ColumnView
from learning.batch.micro_batches import split_micro_batches
from learning.lookup import Bound, bind
from learning.models.checkpoint import add_prefix, get_optimizer_state, load_optimizer_state, load_weights, strip_prefix
from learning.models.optimize import clip_gradients, make_optimizer
from learning.models.policy import Policy
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE, Group
from schemas.auxiliary import Auxiliary as AuxiliaryBlock
from schemas.auxiliary import Network
from schemas.number_schedules import settle, value_at
from schemas.stages.rl import Rl

Columns = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Columns of tokens and of paths, by suffix of their names."""


class TrainedNetwork:
    """A network with its optimiser, and the metrics since they were last read.

    `base` is the prefix of its columns, `aim` the column of its targets, `link` the map from values to a column.
    """

    def __init__(
        self,
        name: str,
        port: str,
        block: Network,
        policy: Policy,
        stage: Rl,
        inputs: Mapping[str, Path],
        seed: int,
        group: Group = ALONE,
    ) -> None:
        self.name, self.block, self.stage = name, block, stage
        self.base, self.aim, self.reads, self.link = f"{AUXILIARY}{name}", f"target:{name}", "state", "identity"
        if isinstance(block, AuxiliaryBlock):
            self.reads, self.link = block.head, block.link
        self.loss = bind(block.loss, f"{port}.loss", inputs)
        self.combine = bind(block.combine, f"{port}.combine", inputs)
        self.token_mask = [bind(use, f"{port}.token_mask.{i}", inputs) for i, use in enumerate(block.token_mask)]
        self.network: Any = make_network(block, self.reads, policy, inputs.get(f"{port}.model"), seed, name)
        # Every rank holds the full network, also where the policy is sharded.
        self.group = replace(group, strategy="ddp")
        self.trained: Trained | None = None
        self.optimizer: torch.optim.Optimizer | None = make_optimizer(self.network, stage)
        self._recorded: dict[str, list[float]] = {}

    @property
    def type(self) -> str:
        """Artifact type under which it is published."""
        return "value_model" if self.reads == "state" else "process_reward_model"

    @property
    def of_paths(self) -> bool:
        """Whether it values completions, not tokens."""
        return self.reads == "path" or self.adds_up

    @property
    def adds_up(self) -> bool:
        """Whether the value of a completion is the sum of values at its tokens."""
        return self.reads in ("likelihood", "turns")

    def is_warming_up(self, step: int) -> bool:
        """Return whether the policy waits for it at this step."""
        return step < self.block.warmup_steps

    def add_values(self, batch: Batch) -> Batch:
        """Add its columns: at tokens `<base>` and others by suffix, at paths `<base>_end`; per head `<base>.<head>`."""
        tokens, paths = self._read(self.network, batch)
        named = {f"{self.base}{suffix}": column for suffix, column in tokens.items()}
        return batch.with_tokens(**named).with_paths(**{f"{self.base}{suffix}": c for suffix, c in paths.items()})

    @torch.no_grad()
    def _read(self, network: Any, batch: Batch) -> Columns:
        """Return columns of tokens and of paths by suffix, in float64."""
        columns: Columns = ({}, {})
        sizes = (len(batch.sampled_T), batch.num_paths)
        placed = batch.with_tokens(place_whole=torch.arange(sizes[0]))
        placed = placed.with_paths(place_whole=torch.arange(sizes[1]))
        micros = split_micro_batches(placed, self.stage.max_tokens_per_micro_batch)
        parts = self.group.each(micros, lambda micro: self._read_micro(network, micro))
        for micro, part in zip(micros, parts, strict=True):
            places = (micro.sampled("place_whole"), micro.paths["place_whole"])
            for joined, own, place_X, size in zip(columns, part, places, sizes, strict=True):
                for suffix, column_X in own.items():
                    joined.setdefault(suffix, torch.zeros(size, dtype=torch.float64))[place_X] = column_X
        return columns

    def _read_micro(self, network: Any, micro: Batch) -> Columns:
        """Return the columns of a micro-batch."""
        output = network(micro, whole=True)
        heads = {f".{h}": value_X for h, value_X in enumerate(output.values_XH.unbind(-1))}
        own = {} if self.adds_up else {"": self._column(output.values_XH)}
        ends = {f"_end{suffix}": self._column(column) for suffix, column in output.ends.items()}
        tokens = {suffix: self._column(column) for suffix, column in output.tokens.items()}
        of_tokens, of_paths = (tokens, heads | own | ends) if self.of_paths else (heads | own | tokens, ends)
        return (
            {suffix: column_X.cpu().double() for suffix, column_X in of_tokens.items()},
            {suffix: column_X.cpu().double() for suffix, column_X in of_paths.items()},
        )

    def _column(self, values: Tensor) -> Tensor:
        """Return the column that others see of values (X, H), or of values that are one number (X,)."""
        one_X = self.combine(values.cpu().double()) if values.ndim == 2 else values
        return one_X.sigmoid() if self.link == "logistic" else one_X

    def update(self, mini: Batch, step: int, controls: Mapping[str, float] | None = None) -> None:
        """Make one optimiser step on the mean loss over what is selected of a mini-batch; none if that is empty."""
        if self.optimizer is None:
            return
        keep_X, loss_of = self._selected(mini, step), self.loss.settled(controls or {})
        if not bool(keep_X.any()):
            return
        weights = {f"w.{self.name}": keep_X.double() / keep_X.sum()}
        mini = mini.with_paths(**weights) if self.of_paths else mini.with_tokens(**weights)
        self.optimizer.zero_grad(set_to_none=True)
        micros = split_micro_batches(mini, self.stage.max_tokens_per_micro_batch)
        weighted = [micro for micro in micros if bool((self._of(micro, f"w.{self.name}") != 0).any())]
        self.trained = self.trained or Trained(self.network, self.group)
        losses = self.trained.backward(weighted, lambda micro: self._loss(loss_of, micro, step))
        rate = self.stage.learning_rate if self.block.learning_rate is None else self.block.learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = value_at(settle(rate, controls or {}), step)
        norm = clip_gradients(self.network, self.stage.max_grad_norm)
        self.optimizer.step()
        self._record(loss=self.group.add_up([sum(losses)])[0], grad_norm=norm)

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Return metrics since the last call; `explained_variance` is that of the values before the update."""
        metrics = {name: sum(values) / len(values) for name, values in self._recorded.items()}
        self._recorded = {}
        column_X = self._of(batch, f"{self.base}.0" if self.adds_up else self.base)
        if len(column_X) and self.optimizer is not None:
            target_X = self._of(batch, self.aim)
            known_X = target_X.isfinite()
            share = explained_variance(column_X[known_X], target_X[known_X])
            metrics |= {"mean": float(column_X.mean()), "explained_variance": share}
        return {self._metric(name): value for name, value in metrics.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return weights and moments, for a checkpoint."""
        if self.optimizer is None:
            return {}
        moments, _ = get_optimizer_state(self.optimizer)
        return add_prefix("weights", self._trained()) | add_prefix("optimizer", moments)

    def state(self) -> list[Any]:
        """Return what belongs to a checkpoint besides tensors, as JSON."""
        return [] if self.optimizer is None else get_optimizer_state(self.optimizer)[1]

    def load(self, tensors: Mapping[str, Tensor], state: list[Any]) -> None:
        """Restore what `tensors` and `state` returned. Raise StepError for those of another network."""
        if self.optimizer is None:
            return
        load_weights(self._trained(), strip_prefix("weights", tensors))
        load_optimizer_state(self.optimizer, strip_prefix("optimizer", tensors), state)

    def save(self, policy: Policy, folder: Path) -> None:
        """Write it as an artifact, with the tokenizer of `policy`."""
        save_network(self.network, policy, folder, link=self.link)

    def _trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def _of(self, batch: Batch, column: str) -> Tensor:
        """Return a column of what is valued (X,)."""
        return batch.paths[column] if self.of_paths else batch.sampled(column)

    def _loss(self, loss: Bound, micro: Batch, step: int) -> tuple[Tensor, float]:
        """Return Σ w·ℓ over what a micro-batch values, the mean over the heads; and its value."""
        value_XH = self.network(micro).values_XH
        aim_X, w_X = (self._of(micro, name).to(value_XH) for name in (self.aim, f"w.{self.name}"))
        aim_X = aim_X.where(w_X != 0, torch.zeros_like(aim_X))
        total = value_XH.new_zeros(())
        for head, value_X in enumerate(value_XH.unbind(-1)):
            old_X = self._of(micro, f"{self.base}.{head}").to(value_XH)
            supplies = {"value_T": value_X, "value_old_T": old_X, "return_T": aim_X}
            total = total + (loss.ask(step, supplies) * w_X).sum()
        mean = total / self.block.heads
        return mean, float(mean.detach())

    def _selected(self, batch: Batch, step: int) -> Tensor:
        """Return what trains it (X,); of completions those with a selected token."""
        keep_T = torch.ones(len(batch.sampled_T), dtype=torch.bool)
        for bound in self.token_mask:
            keep_T = keep_T & bound.ask(step, ColumnView(batch, step=step))
        if self.of_paths:
            count_P = torch.zeros(batch.num_paths, dtype=torch.long).index_add(0, batch.path_T, keep_T.long())
            return (count_P > 0) & batch.paths[self.aim].isfinite()
        return keep_T & batch.sampled(self.aim).isfinite()

    def _metric(self, name: str) -> str:
        """Return the full name of a metric."""
        return f"{self.name}/{name}"

    def _record(self, **values: float) -> None:
        for name, value in values.items():
            self._recorded.setdefault(name, []).append(value)


def explained_variance(value_T: Tensor, return_T: Tensor) -> float:
    """Return 1 − Var(R − V) / Var(R): 1 for a perfect critic, 0 for a constant; 0 where the returns do not vary."""
    spread = float(return_T.var(correction=0)) if len(return_T) else 0.0
    return 1 - float((return_T - value_T).var(correction=0)) / spread if spread else 0.0
