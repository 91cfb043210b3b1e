"""The RL loss: Σ over tokens of weight · factor · policy loss, plus coefficient · weight · term for every loss term.

Weights come from the whole mini-batch (`with_weights`), the loss of a micro-batch is a plain sum (`micro_loss`).
Shapes: T sampled tokens, P paths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from learning.algorithm.composition import Algorithm, LossTerm
from learning.batch.batch import Batch
from learning.batch.columns import Column, ColumnView, broadcast_to_tokens, of_rewards
from learning.batch.observations import measure_surprise
from learning.lookup import Bound
from learning.models.shared_prefixes import shared_statistics
from learning.models.token_statistics import STATISTICS
from learning.parallel.group import Group
from learning.samples.sample import Row, States
from schemas.number_schedules import value_at


def with_advantages(
    algorithm: Algorithm,
    batch: Batch,
    step: int,
    *,
    states: States | None = None,
    rows: Sequence[Row] | None = None,
) -> Batch:
    """Add the token column `advantage`.

    Pipelines of operations over the shaped reward and over further scores are added up, then shaped. `states` is the
    memory of slot functions, `rows` the problem of every path; without them functions cannot ask for them.
    """
    supplied: dict[str, object] = {"step": step}
    supplied |= {} if states is None else {"states": states}
    supplied |= {} if rows is None else {"rows": rows}
    for part in algorithm.reward_shaping:
        shaped_P = part.ask(step, ColumnView(batch, **supplied)).to(torch.float64)
        batch = replace(batch, paths={**batch.paths, "reward": shaped_P})
    pipelines = [(of_rewards(batch), algorithm.advantage, 1.0)] if algorithm.advantage else []
    for stream in algorithm.advantage_streams:
        pipelines.append((_start(stream.of, batch), stream.advantage, value_at(stream.coef, step)))
    total_T = torch.zeros(len(batch.sampled_T), dtype=torch.float64)
    for column, operations, coef in pipelines:
        for operation in operations:
            column = operation.ask(step, ColumnView(batch, **supplied), column, batch)
        lifted = broadcast_to_tokens(column, batch)
        total_T = total_T + coef * lifted.values_X
        if lifted.return_X is not None:
            batch = batch.replaced(**{"return": lifted.return_X})
    for part in algorithm.advantage_shaping:
        total_T = part.ask(step, ColumnView(batch, advantage_T=total_T, **supplied))
    return batch.with_tokens(advantage=total_T)


def _start(of: str, batch: Batch) -> Column:
    """Return the start of a further stream: a raw score per path, or the value of an auxiliary model per token."""
    if f"score:{of}" in batch.paths:
        raw_P = batch.paths[f"score:{of}"]
        return Column(raw_P, raw_P, torch.arange(batch.num_paths), "path")
    raw_T = ColumnView(batch)[f"{of}_T"].double()
    return Column(raw_T, raw_T, batch.path_T, "token")


def with_dropped(batch: Batch, mask_truncated: bool) -> Batch:
    """Add the token column `dropped`: tokens with weight 0 in every loss."""
    dropped_T = batch.sampled("broken")
    if mask_truncated:
        dropped_T = dropped_T | batch.paths["truncated"][batch.path_T]
    return batch.with_tokens(dropped=dropped_T)


def with_factors(algorithm: Algorithm, batch: Batch, step: int, *, seed: int | None = None) -> Batch:
    """Add the token column `factor`, the product of the importance corrections, if the algorithm has any."""
    if not algorithm.importance_correction:
        return batch
    supplied: dict[str, object] = {"step": step}
    supplied |= {} if seed is None else {"seed": seed}
    factor_T = torch.ones(len(batch.sampled_T), dtype=torch.float64)
    for part in algorithm.importance_correction:
        factor_T = factor_T * part.ask(step, ColumnView(batch, **supplied)).detach().double()
    return batch.with_tokens(factor=factor_T)


def with_weights(algorithm: Algorithm, batch: Batch, step: int, max_completion_length: int) -> Batch:
    """Add the token columns `w` and, for each further term i, `w.i`: weights over this whole mini-batch."""
    of_path_T = batch.paths["weight"][batch.path_T]

    def weights(weigh: Bound, select: Sequence[Bound]) -> Tensor:
        selected = _selected(batch, select, step)
        return weigh.ask(step, {"batch": selected, "max_completion_length": max_completion_length}) * of_path_T

    columns = {"w": weights(algorithm.loss_aggregation, algorithm.token_mask)}
    for i, term in enumerate(algorithm.loss_terms):
        own = term.loss_aggregation is not None or term.token_mask is not None
        select = algorithm.token_mask if term.token_mask is None else term.token_mask
        own_T = weights(term.loss_aggregation or algorithm.loss_aggregation, select) if own else columns["w"]
        columns[f"w.{i}"] = own_T * value_at(term.coef, step)
    return batch.with_tokens(**columns)


def _selected(batch: Batch, select: Sequence[Bound], step: int) -> Batch:
    """Return the batch with the tokens dropped that are not selected."""
    if not select:
        return batch
    keep_T = torch.ones(len(batch.sampled_T), dtype=torch.bool)
    for part in select:
        keep_T = keep_T & part.ask(step, ColumnView(batch, step=step))
    return batch.replaced(dropped=batch.sampled("dropped") | ~keep_T)


def micro_loss(
    algorithm: Algorithm, model: Any, batch: Batch, *, step: int, temperature: float
) -> tuple[Tensor, ColumnView]:
    """Return the loss of a micro-batch with weights and advantages, and its detached columns at the sampled tokens.

    Backward through the returned loss gives the model's gradient. The column `policy_grad_T` is the derivative of the
    weighted policy loss by each token's log-probability.
    """
    needed = algorithm.list_needed_names()
    followed = ["lp", *(name for name in STATISTICS if f"{name}_T" in needed and name != "collision")]
    watched = ["entropy", *(["collision"] if "collision_T" in needed else [])]
    learn_M, predicts = batch.tokens["learn"], _predicts_observations(algorithm, step)
    with batch.routed(model):
        statistics = shared_statistics(
            model,
            batch.packed.to(model.device),
            followed=tuple(followed),
            watched=tuple(name for name in watched if name not in followed),
            temperature=temperature,
            needed_M=learn_M | batch.tokens["observed"] if predicts else learn_M,
            kept_M=batch.kept_M,
        )
    at = {name: column_M[batch.sampled_T] for name, column_M in statistics.items()}
    if predicts:
        at["surprise"] = measure_surprise(batch, statistics["lp"])
    leaves = {name: at[name].detach().requires_grad_() for name in (*followed, *(["surprise"] if predicts else []))}
    columns = view_columns(batch, {**at, **leaves})
    columns["step"] = step
    if not predicts:
        columns["surprise_T"] = torch.zeros_like(leaves["lp"])
    columns["log_ratio_T"] = algorithm.ratio.ask(step, columns)
    factor_T = columns["factor_T"] if algorithm.importance_correction else 1.0
    policy = _weighted(algorithm.policy_loss.ask(step, columns) * factor_T, columns["w_T"])
    (policy_grad_T,) = torch.autograd.grad(policy, leaves["lp"], retain_graph=True)
    parts = _terms(algorithm.loss_terms, columns, step)
    total = policy + sum(parts)
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves, grads, strict=True)
    loss = sum(((at[name] * grad_T).sum() for name, grad_T in pairs if grad_T is not None), torch.zeros(()))
    # Keep the value of the loss; its gradient goes through the statistics.
    loss = loss + (total - loss).detach()
    columns["policy_grad_T"] = policy_grad_T
    columns["parts"] = [float(part.detach()) for part in parts]
    columns.detach()
    return loss, columns


def _predicts_observations(algorithm: Algorithm, step: int) -> bool:
    """Return whether a term with a coefficient other than 0 asks how likely observations are."""
    terms = (term for term in algorithm.loss_terms if "surprise_T" in term.function.asks)
    return any(value_at(term.coef, step) != 0 for term in terms)


def view_columns(batch: Batch, statistics: Mapping[str, Tensor]) -> ColumnView:
    """Return what a part of the loss may ask for, on the device and in the precision of the model's statistics."""
    lp_T = statistics["lp"]
    columns = ColumnView(batch, lp_T, **{f"{name}_T": t.to(lp_T.dtype) for name, t in statistics.items()})
    # A token with an unknown sampling log-probability has ratio 1 and weight 0.
    columns["lp_behav_T"] = columns["lp_behav_T"].where(~columns["broken_T"], lp_T.detach())
    return columns


def _terms(terms: Sequence[LossTerm], columns: ColumnView, step: int) -> list[Tensor]:
    """Return Σ w·ℓ of every further term."""
    return [_weighted(t.function.ask(step, columns), columns[f"w.{i}_T"]) for i, t in enumerate(terms)]


def _weighted(loss_T: Tensor, w_T: Tensor) -> Tensor:
    """Return Σ w·ℓ over tokens with a weight; a token of weight 0 gives no gradient, whatever its loss."""
    return (loss_T.where(w_T != 0, torch.zeros_like(loss_T)) * w_T).sum()


@dataclass
class LossSums:
    """Sums over tokens, added up micro-batch by micro-batch; `gap` is a maximum.

    `names` are those of the further terms of the loss, `parts` their weighted sums and the sums of their weights.
    """

    names: Sequence[str] = ()
    parts: dict[str, tuple[float, float]] = field(default_factory=dict)
    tokens: int = 0
    clipped: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    kl_to_sampler: float = 0.0
    gap: float = 0.0

    def add(self, columns: ColumnView, first: bool) -> None:
        """Add one micro-batch; `first`: the policy has not been trained on this batch yet."""
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

    def over_ranks(self, group: Group) -> "LossSums":
        """Return the sums over the micro-batches of all ranks."""
        numbers = [float(self.tokens), self.clipped, self.entropy, self.kl, self.kl_to_sampler]
        for name in self.names:
            numbers += self.parts.get(name, (0.0, 0.0))
        summed = iter(group.add_up(numbers))
        return LossSums(
            self.names,
            tokens=int(next(summed)),
            clipped=next(summed),
            entropy=next(summed),
            kl=next(summed),
            kl_to_sampler=next(summed),
            parts={name: (next(summed), next(summed)) for name in self.names},
            gap=max(group.gather(self.gap)),
        )

    def means(self, has_reference: bool) -> dict[str, float]:
        """Return metrics: means over tokens."""
        n = max(self.tokens, 1)
        metrics = {
            "clip_fraction": self.clipped / n,
            "entropy": self.entropy / n,
            "kl_to_sampler": self.kl_to_sampler / n,
        }
        metrics |= {f"loss/{name}": total / weight for name, (total, weight) in self.parts.items() if weight}
        return {**metrics, "logprob_gap": self.gap, **({"kl": self.kl / n} if has_reference else {})}


def _k3(lp_T: Tensor, other_T: Tensor) -> Tensor:
    """Return an estimate of KL(policy ‖ other) at each token."""
    r_T = (other_T - lp_T).clamp(-20, 20)
    return r_T.expm1() - r_T
