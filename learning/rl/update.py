"""One RL update: passes over a batch, one optimiser step per mini-batch, gradients summed over micro-batches.

Every rank of a group holds the batch; they share its micro-batches.

Shapes: T sampled tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from learning.algorithm.composition import Algorithm
from learning.batch.batch import Batch
from learning.batch.loss_columns import Columns
from learning.batch.split import split_mini_batches, split_shared_micro_batches
from learning.models.optimize import clip_gradients
from learning.models.sharded_model import Trained
from learning.parallel.group import Group
from learning.rl.policy_loss import columns_of, micro_loss, with_weights
from learning.rl.references import statistics_of
from learning.sampling.sampler import names
from schemas.stages.rl import Rl

if TYPE_CHECKING:
    from learning.rl.auxiliaries import Auxiliaries

CURRENT = ("lp", "entropy", "lp_mean", "collision")


@dataclass
class Sums:
    """Means over tokens, gathered micro-batch by micro-batch; `gap` is a maximum.

    `names` are those of the loss's components, `parts` their weighted sums and the sums of their weights.
    """

    names: Sequence[str] = ()
    parts: dict[str, tuple[float, float]] = field(default_factory=dict)
    tokens: int = 0
    clipped: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    kl_to_sampler: float = 0.0
    gap: float = 0.0

    def add(self, columns: Columns, first: bool) -> None:
        """Add one micro-batch; `first`: nothing has been learned from this batch yet."""
        own_T = ~columns["external_T"]
        lp_T, behav_T = columns["lp_T"], columns["lp_behav_T"]
        active_T = (columns["w_T"] != 0) & (columns["advantage_T"] != 0)
        self.tokens += len(lp_T)
        self.clipped += float((active_T & (columns["policy_grad_T"] == 0)).sum())
        self.entropy += float(columns["entropy_T"].sum())
        self.kl_to_sampler += float(_k3(lp_T[own_T], behav_T[own_T]).sum())
        if "lp_ref_T" in columns:
            self.kl += float(_k3(lp_T, columns["lp_ref_T"]).sum())
        for i, (name, part) in enumerate(zip(self.names, columns["parts"], strict=True)):
            total, weight = self.parts.get(name, (0.0, 0.0))
            self.parts[name] = (total + part, weight + float(columns[f"w.{i}_T"].sum()))
        fresh_T = own_T & (columns["source_T"] == 0) & (columns["version_T"] == columns["step"])
        if first and bool(fresh_T.any()):
            self.gap = max(self.gap, float((lp_T - behav_T)[fresh_T].abs().max()))

    def of_all(self, group: Group) -> "Sums":
        """The same over the micro-batches of all ranks."""
        names = ("tokens", "clipped", "entropy", "kl", "kl_to_sampler")
        numbers = [float(getattr(self, name)) for name in names]
        for name in self.names:
            numbers += self.parts.get(name, (0.0, 0.0))
        summed = iter(group.add_up(numbers))
        found = {name: next(summed) for name in names}
        parts = {name: (next(summed), next(summed)) for name in self.names}
        return replace(self, **found, parts=parts, gap=max(group.gather(self.gap)))

    def means(self, has_reference: bool) -> dict[str, float]:
        """Points for the curves."""
        n = max(self.tokens, 1)
        found = {
            "clip_fraction": self.clipped / n,
            "entropy": self.entropy / n,
            "kl_to_sampler": self.kl_to_sampler / n,
        }
        found |= {f"loss/{name}": total / weight for name, (total, weight) in self.parts.items() if weight}
        return {**found, "logprob_gap": self.gap, **({"kl": self.kl / n} if has_reference else {})}


def _k3(lp_T: Tensor, other_T: Tensor) -> Tensor:
    """Estimate of KL(policy ‖ other) at each token."""
    r_T = (other_T - lp_T).clamp(-20, 20)
    return r_T.expm1() - r_T


def with_proximal(algorithm: Algorithm, batch: Batch, trained: Trained, stage: Rl) -> Batch:
    """Add the token columns `lp_prox`, `lp_mean_prox` … that are asked for: those of the weights now."""
    names = tuple(n for n in CURRENT if algorithm.needs(f"{n}_prox_T"))
    if not names:
        return batch
    found = statistics_of(batch, trained.model, names, **_how(stage, trained))
    return batch.with_tokens(**{f"{name}_prox": column for name, column in found.items()})


def _how(stage: Rl, trained: Trained) -> dict[str, Any]:
    """How the statistics of the policy as it is now are computed."""
    limits = {"max_tokens": stage.max_tokens_per_micro_batch, "temperature": stage.temperature}
    return {**limits, "replay": True, "each": trained.each}


def solve(
    algorithm: Algorithm, batch: Batch, trained: Trained, stage: Rl, step: int, have: Mapping[str, Any]
) -> dict[str, float]:
    """The numbers of those controllers that look at the batch about to be trained on."""
    looking = {name: part for name, part in algorithm.controllers.items() if _looks(part.asks)}
    if not looking:
        return {}
    asked = {name for part in looking.values() for name in part.asks}
    names = ("lp", *(n for n in CURRENT[1:] if f"{n}_T" in asked))
    columns = columns_of(batch, statistics_of(batch, trained.model, names, **_how(stage, trained)))
    for name, value in have.items():
        columns[name] = value
    return {name: part.ask(step, columns) for name, part in looking.items()}


def regulate(algorithm: Algorithm, step: int, have: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of the controllers that go by the points of the last iteration; one may use those before it."""
    numbers: dict[str, float] = {}
    for name, part in algorithm.controllers.items():
        if not _looks(part.asks):
            numbers[name] = part.settled(numbers).ask(step, have)
    return numbers


def _looks(requests: list[str]) -> bool:
    return any(name.endswith("_T") for name in requests)


def update(
    algorithm: Algorithm,
    trained: Trained,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    stage: Rl,
    step: int,
    *,
    beside: "Auxiliaries | None" = None,
    controls: Mapping[str, float] | None = None,
    have: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Train on a batch that carries advantages and all fixed columns; returns points for the curves.

    `have` is what controllers may ask for beside columns, `controls` what others have said for this iteration, `beside`
    the networks that learn with the policy, from the same mini-batches.
    """
    sums, norms = Sums(names([term.function for term in algorithm.loss_terms])), []
    solved: dict[str, float] = {}
    for i in range(stage.num_iterations):
        for j, mini in enumerate(split_mini_batches(batch, stage.num_mini_batches)):
            if beside is not None:
                beside.learn(mini, step, controls)
                if beside.warming(step):
                    continue
            solved = solve(algorithm, mini, trained, stage, step, have or {})
            now = algorithm.settled(solved)
            mini = with_weights(now, mini, step, stage.max_completion_length)
            optimizer.zero_grad(set_to_none=True)
            parts = split_shared_micro_batches(mini, stage.max_tokens_per_micro_batch, trained.group)
            loss_of = partial(micro_loss, now, trained.model, step=step, temperature=stage.temperature)
            for columns in trained.backward(parts, loss_of):
                sums.add(columns, first=i == j == 0)
            norms.append(clip_gradients(trained.model, stage.max_grad_norm))
            optimizer.step()
    if not norms:
        return {}
    told = {f"controller/{name}": value for name, value in solved.items()}
    means = sums.of_all(trained.group).means("lp_ref" in batch.tokens)
    return {**means, **told, "grad_norm": sum(norms) / len(norms)}
