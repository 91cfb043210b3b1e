"""A network beside the policy: its columns, its targets, its optimiser and checkpoint. How a loop uses it:

    one = Auxiliary("progress", block, policy, stage, inputs, seed)  # once, while the policy is as it started
    batch = one.values(batch)                  # before shape and advantage: the column `progress`, no gradient
    batch = with_advantages(algorithm, batch, step)
    batch = one.with_targets(batch, step)      # what it is to predict
    for mini in mini_batches(batch, …):
        one.learn(mini, step)                  # one step of its own optimiser; cuts micro-batches by itself
        if not one.warming(step): …            # the policy's step
    points |= one.points(batch)                # <name>/loss, <name>/explained_variance, … of this iteration
    one.refresh(step)                          # its slow copy
    one.tensors(), one.state()                 # for the checkpoint; one.load(tensors, state) puts them back

Which tokens train it, `token_mask` says, apart from what the policy's loss leaves out. `learning.rl.critic` is the one
whose targets an operation of `advantage` gives. In a batch its columns are called `aux:<name>`, so that none can be
taken for one of the batch's own.

Shapes: T sampled tokens, P paths, X what is valued (T, or P for completions), H heads.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learning.auxiliary_networks.heads import make_network, save_network
from learning.batch.batch import Batch
from learning.batch.columns import locate_in_path, take_next_state
from learning.batch.loss_columns import AUXILIARY, Columns
from learning.batch.split import split_micro_batches
from learning.lookup import Bound, bind
from learning.models.checkpoint import add_prefix, get_optimizer_state, load_optimizer_state, load_weights, strip_prefix
from learning.models.optimize import clip_gradients, make_optimizer
from learning.models.policy import Policy
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE, Group
from schemas.auxiliary import NEXT, Network
from schemas.auxiliary import Auxiliary as Block
from schemas.number_schedules import settle, value_at
from schemas.stages.rl import Rl


class Learner:
    """The network, what trains it, and the points it has gathered since it was last asked.

    `base` begins the names of its columns, `aim` names what it is to predict, `link` makes a column of values.
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
        if isinstance(block, Block):
            self.reads, self.link = block.head, block.link
        self.loss = bind(block.loss, f"{port}.loss", inputs)
        self.combine = bind(block.combine, f"{port}.combine", inputs)
        self.token_mask = [bind(use, f"{port}.token_mask.{i}", inputs) for i, use in enumerate(block.token_mask)]
        self.network: Any = make_network(block, self.reads, policy, inputs.get(f"{port}.model"), seed, name)
        # Every rank holds it whole, also where the policy is in parts.
        self.group = replace(group, strategy="ddp")
        self.trained: Trained | None = None
        self.optimizer: torch.optim.Optimizer | None = make_optimizer(self.network, stage)
        self._told: dict[str, list[float]] = {}

    @property
    def type(self) -> str:
        """Type of the artifact that it can be published as."""
        return "value_model" if self.reads == "state" else "process_reward_model"

    @property
    def of_paths(self) -> bool:
        """Whether a completion has one value, not each of its tokens."""
        return self.reads in ("path", "likelihood")

    def warming(self, step: int) -> bool:
        """Whether the policy waits for it at this step."""
        return step < self.block.warmup_steps

    def values(self, batch: Batch) -> Batch:
        """Add its columns: at tokens `<base>` and others by suffix, at paths `<base>_end`; per head `<base>.<head>`."""
        tokens, paths = self._read(self.network, batch)
        named = {f"{self.base}{suffix}": column for suffix, column in tokens.items()}
        return batch.with_tokens(**named).with_paths(**{f"{self.base}{suffix}": c for suffix, c in paths.items()})

    @torch.no_grad()
    def _read(self, network: Any, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Columns of tokens and of paths by suffix, in float64."""
        found: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        num = (len(batch.sampled_T), batch.num_paths)
        placed = batch.with_tokens(place_whole=torch.arange(num[0])).with_paths(place_whole=torch.arange(num[1]))

        def parts_of(micro: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            said = network(micro, whole=True)
            heads = {f".{h}": value_X for h, value_X in enumerate(said.values_XH.unbind(-1))}
            own = {} if self.reads == "likelihood" else {"": self._column(said.values_XH)}
            ends = {f"_end{suffix}": self._column(column) for suffix, column in said.ends.items()}
            told = {suffix: self._column(column) for suffix, column in said.tokens.items()}
            parts = (told, heads | own | ends) if self.of_paths else (heads | own | told, ends)
            return tuple({suffix: column_X.cpu().double() for suffix, column_X in part.items()} for part in parts)

        micros = split_micro_batches(placed, self.stage.max_tokens_per_micro_batch)
        for micro, parts in zip(micros, self.group.each(micros, parts_of), strict=True):
            at = (micro.sampled("place_whole"), micro.paths["place_whole"])
            for whole, part, places, size in zip(found, parts, at, num, strict=True):
                for suffix, column_X in part.items():
                    whole.setdefault(suffix, torch.zeros(size, dtype=torch.float64))[places] = column_X
        return found

    def _column(self, values: Tensor) -> Tensor:
        """What others see of values (X, H), or of those that are one number (X,)."""
        one_X = self.combine(values.cpu().double()) if values.ndim == 2 else values
        return one_X.sigmoid() if self.link == "logistic" else one_X

    def learn(self, mini: Batch, step: int, controls: Mapping[str, float] | None = None) -> None:
        """One step of the optimiser on the mean loss of what is selected of a mini-batch; none where that is empty."""
        if self.optimizer is None:
            return
        keep_X, loss_of = self._selected(mini, step), self.loss.settled(controls or {})
        if not bool(keep_X.any()):
            return
        weights = {f"w.{self.name}": keep_X.double() / keep_X.sum()}
        mini = mini.with_paths(**weights) if self.of_paths else mini.with_tokens(**weights)
        self.optimizer.zero_grad(set_to_none=True)
        micros = split_micro_batches(mini, self.stage.max_tokens_per_micro_batch)
        weighty = [micro for micro in micros if bool((self._of(micro, f"w.{self.name}") != 0).any())]
        self.trained = self.trained or Trained(self.network, self.group)
        losses = self.trained.backward(weighty, lambda micro: self._loss(loss_of, micro, step))
        rate = self.stage.learning_rate if self.block.learning_rate is None else self.block.learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = value_at(settle(rate, controls or {}), step)
        norm = clip_gradients(self.network, self.stage.max_grad_norm)
        self.optimizer.step()
        self._tell(loss=self.group.add_up([sum(losses)])[0], grad_norm=norm)

    def points(self, batch: Batch) -> dict[str, float]:
        """Points for the curves since the last call; `explained_variance` is that of the values before the update."""
        found = {name: sum(values) / len(values) for name, values in self._told.items()}
        self._told = {}
        column_X = self._of(batch, f"{self.base}.0" if self.reads == "likelihood" else self.base)
        if len(column_X) and self.optimizer is not None:
            target_X = self._of(batch, self.aim)
            known_X = target_X.isfinite()
            share = explained_variance(column_X[known_X], target_X[known_X])
            found |= {"mean": float(column_X.mean()), "explained_variance": share}
        return {self._point(name): value for name, value in found.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments, for a checkpoint."""
        if self.optimizer is None:
            return {}
        moments, _ = get_optimizer_state(self.optimizer)
        return add_prefix("weights", self._trained()) | add_prefix("optimizer", moments)

    def state(self) -> list[Any]:
        """What belongs to a checkpoint beside tensors, as JSON."""
        return [] if self.optimizer is None else get_optimizer_state(self.optimizer)[1]

    def load(self, tensors: Mapping[str, Tensor], state: list[Any]) -> None:
        """Put back what `tensors` and `state` gave; raises StepError for those of another network."""
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
        """A column of what is valued (X,)."""
        return batch.paths[column] if self.of_paths else batch.sampled(column)

    def _loss(self, loss: Bound, micro: Batch, step: int) -> tuple[Tensor, float]:
        """Σ w·ℓ over what a micro-batch values, the mean over the heads; and its value."""
        value_XH = self.network(micro).values_XH
        aim_X, w_X = (self._of(micro, name).to(value_XH) for name in (self.aim, f"w.{self.name}"))
        aim_X = aim_X.where(w_X != 0, torch.zeros_like(aim_X))
        total = value_XH.new_zeros(())
        for head, value_X in enumerate(value_XH.unbind(-1)):
            old_X = self._of(micro, f"{self.base}.{head}").to(value_XH)
            have = {"value_T": value_X, "value_old_T": old_X, "return_T": aim_X}
            total = total + (loss.ask(step, have) * w_X).sum()
        mean = total / self.block.heads
        return mean, float(mean.detach())

    def _selected(self, batch: Batch, step: int) -> Tensor:
        """What trains it (X,); of completions those with a selected token."""
        keep_T = torch.ones(len(batch.sampled_T), dtype=torch.bool)
        for bound in self.token_mask:
            keep_T = keep_T & bound.ask(step, Columns(batch, step=step))
        if self.of_paths:
            count_P = torch.zeros(batch.num_paths, dtype=torch.long).index_add(0, batch.path_T, keep_T.long())
            return (count_P > 0) & batch.paths[self.aim].isfinite()
        return keep_T & batch.sampled(self.aim).isfinite()

    def _point(self, name: str) -> str:
        """Name of a point in the curves."""
        return f"{self.name}/{name}"

    def _tell(self, **values: float) -> None:
        for name, value in values.items():
            self._told.setdefault(name, []).append(value)


class Auxiliary(Learner):
    """One of the stage's `auxiliary_models`: its targets are a function of its own, perhaps of a slow copy's values."""

    def __init__(
        self,
        name: str,
        block: Block,
        policy: Policy,
        stage: Rl,
        inputs: Mapping[str, Path],
        seed: int,
        group: Group = ALONE,
    ) -> None:
        """Copy the body of `policy`, or take up what `model` holds; raises StepError for what does not exist."""
        port = f"auxiliary_models.{name}"
        super().__init__(name, port, block, policy, stage, inputs, seed, group)
        self.target_network = block.target_network
        self.target = bind(block.target, f"{port}.target", inputs) if block.target else None
        if self.target is None:
            self.optimizer = None
        ahead = self.target is not None and any(word in self.target.asks for word in NEXT)
        self.slow: Any = deepcopy(self.network).requires_grad_(False) if block.target_network and ahead else None

    def with_targets(self, batch: Batch, step: int, controls: Mapping[str, float] | None = None, **have: Any) -> Batch:
        """Add what it is to predict: `target:<name>`; `have` as for `with_advantages`."""
        if self.target is None:
            return batch
        columns = Columns(batch, step=step, **have)
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
        """Values of the state after each token: by the slow copy, or by the network as it is."""
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
        """Bring the slow copy nearer, where it is due after iteration `step` (0-based)."""
        if (
            self.slow is not None
            and self.target_network is not None
            and (step + 1) % self.target_network.sync_steps == 0
        ):
            for old, new in zip(self.slow.parameters(), self.network.parameters(), strict=True):
                old.lerp_(new.to(old.dtype), self.target_network.mixup_alpha)

    def tensors(self) -> dict[str, Tensor]:
        """Weights, moments and the slow copy, for a checkpoint."""
        return super().tensors() | add_prefix("slow", {} if self.slow is None else dict(self.slow.named_parameters()))

    def load(self, tensors: Mapping[str, Tensor], state: list[Any]) -> None:
        """Put back what `tensors` and `state` gave; raises StepError for those of another network."""
        super().load(tensors, state)
        if self.slow is not None:
            load_weights(dict(self.slow.named_parameters()), strip_prefix("slow", tensors))


def explained_variance(value_T: Tensor, return_T: Tensor) -> float:
    """1 − Var(R − V) / Var(R): 1 for a perfect critic, 0 for a constant; 0 where the returns do not vary."""
    spread = float(return_T.var(correction=0)) if len(return_T) else 0.0
    return 1 - float((return_T - value_T).var(correction=0)) / spread if spread else 0.0
