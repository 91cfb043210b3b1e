"""The RL loss: Σ over tokens of weight · factor · surrogate, plus coefficient · weight · term for every component.

Weights come from the whole mini-batch (`with_weights`), the loss of a micro-batch is a plain sum (`micro_loss`).
Shapes: T sampled tokens, P paths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from learning.algorithm.composition import Algorithm, LossTerm
from learning.batch.batch import Batch
from learning.batch.columns import Column, broadcast_to_tokens, of_rewards
from learning.batch.loss_columns import Columns
from learning.batch.routing_replay import replay_routing
from learning.lookup import Bound
from learning.models.packed import STATISTICS, packed_statistics
from schemas.number_schedules import value_at


def with_advantages(algorithm: Algorithm, batch: Batch, step: int, **have: Any) -> Batch:
    """Add the token column `advantage`: pipelines over the shaped reward and over further scores, then modulation."""
    for part in algorithm.reward_shaping:
        shaped_P = part.ask(step, Columns(batch, step=step, **have)).to(torch.float64)
        batch = replace(batch, paths={**batch.paths, "reward": shaped_P})
    pipelines = [(of_rewards(batch), algorithm.advantage, 1.0)] if algorithm.advantage else []
    for stream in algorithm.advantage_streams:
        pipelines.append((_start(stream.of, batch), stream.advantage, value_at(stream.coef, step)))
    total_T = torch.zeros(len(batch.sampled_T), dtype=torch.float64)
    for column, operations, coef in pipelines:
        for operation in operations:
            column = operation.ask(step, Columns(batch, step=step, **have), column, batch)
        lifted = broadcast_to_tokens(column, batch)
        total_T = total_T + coef * lifted.values_X
        if lifted.return_X is not None:
            batch = batch.replaced(**{"return": lifted.return_X})
    for part in algorithm.advantage_shaping:
        total_T = part.ask(step, Columns(batch, step=step, advantage_T=total_T, **have))
    return batch.with_tokens(advantage=total_T)


def _start(of: str, batch: Batch) -> Column:
    """Return the start of an advantage stream: a raw score per path, or an auxiliary model's value per token."""
    if f"score:{of}" in batch.paths:
        raw_P = batch.paths[f"score:{of}"]
        return Column(raw_P, raw_P, torch.arange(batch.num_paths), "path")
    raw_T = Columns(batch)[f"{of}_T"].double()
    return Column(raw_T, raw_T, batch.path_T, "token")


def with_dropped(batch: Batch, mask_truncated: bool) -> Batch:
    """Add the token column `dropped`: tokens that weigh nothing in any loss."""
    dropped_T = batch.sampled("broken")
    if mask_truncated:
        dropped_T = dropped_T | batch.paths["truncated"][batch.path_T]
    return batch.with_tokens(dropped=dropped_T)


def with_factors(algorithm: Algorithm, batch: Batch, step: int, **have: Any) -> Batch:
    """Add the token column `factor`, the product of the corrections, where there are any; `have` as `seed`."""
    if not algorithm.importance_correction:
        return batch
    factor_T = torch.ones(len(batch.sampled_T), dtype=torch.float64)
    for part in algorithm.importance_correction:
        factor_T = factor_T * part.ask(step, Columns(batch, step=step, **have)).detach().double()
    return batch.with_tokens(factor=factor_T)


def with_weights(algorithm: Algorithm, batch: Batch, step: int, max_completion_length: int) -> Batch:
    """Add the token columns `w` and, for each component i, `w.i`, over this whole mini-batch."""
    of_path_T = batch.paths["weight"][batch.path_T]

    def weights(weigh: Bound, select: Sequence[Bound]) -> Tensor:
        seen = _selected(batch, select, step)
        return weigh.ask(step, {"batch": seen, "max_completion_length": max_completion_length}) * of_path_T

    columns = {"w": weights(algorithm.loss_aggregation, algorithm.token_mask)}
    for i, term in enumerate(algorithm.loss_terms):
        own = term.loss_aggregation is not None or term.token_mask is not None
        select = algorithm.token_mask if term.token_mask is None else term.token_mask
        own_T = weights(term.loss_aggregation or algorithm.loss_aggregation, select) if own else columns["w"]
        columns[f"w.{i}"] = own_T * value_at(term.coef, step)
    return batch.with_tokens(**columns)


def _selected(batch: Batch, select: Sequence[Bound], step: int) -> Batch:
    """The batch with what is not selected dropped."""
    if not select:
        return batch
    keep_T = torch.ones(len(batch.sampled_T), dtype=torch.bool)
    for part in select:
        keep_T = keep_T & part.ask(step, Columns(batch, step=step))
    return batch.replaced(dropped=batch.sampled("dropped") | ~keep_T)


def micro_loss(
    algorithm: Algorithm, model: Any, batch: Batch, *, step: int, temperature: float
) -> tuple[Tensor, Columns]:
    """Loss of a micro-batch that carries weights and advantages, and its detached columns at the sampled tokens.

    Backward through the returned loss gives the model's gradient. The column `policy_grad_T` is the derivative of the
    weighted surrogate by each token's log-probability.
    """
    asked = algorithm.asked()
    followed = ["lp", *(name for name in STATISTICS if f"{name}_T" in asked and name != "collision")]
    watched = ["entropy", *(["collision"] if "collision_T" in asked else [])]
    with replay_routing(model, batch.tokens.get("experts")):
        found = packed_statistics(
            model,
            batch.packed.to(model.device),
            followed=tuple(followed),
            watched=tuple(name for name in watched if name not in followed),
            temperature=temperature,
            needed_M=batch.tokens["learn"],
        )
    at = {name: column_M[batch.sampled_T] for name, column_M in found.items()}
    leaves = {name: at[name].detach().requires_grad_() for name in followed}
    columns = columns_of(batch, {**at, **leaves})
    columns["step"] = step
    columns["log_ratio_T"] = algorithm.ratio.ask(step, columns)
    factor_T = columns["factor_T"] if algorithm.importance_correction else 1.0
    policy = _weighted(algorithm.policy_loss.ask(step, columns) * factor_T, columns["w_T"])
    (policy_grad_T,) = torch.autograd.grad(policy, leaves["lp"], retain_graph=True)
    parts = _components(algorithm.loss_terms, columns, step)
    total = policy + sum(parts)
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves, grads, strict=True)
    loss = sum(((at[name] * grad_T).sum() for name, grad_T in pairs if grad_T is not None), torch.zeros(()))
    # The value is the loss, the gradient is chained through the statistics by hand.
    loss = loss + (total - loss).detach()
    columns["policy_grad_T"] = policy_grad_T
    columns["parts"] = [float(part.detach()) for part in parts]
    columns.detach()
    return loss, columns


def columns_of(batch: Batch, statistics: Mapping[str, Tensor]) -> Columns:
    """Everything that a part of the loss may ask for, on the device and in the precision of the model's statistics."""
    lp_T = statistics["lp"]
    columns = Columns(batch, lp_T, **{f"{name}_T": t.to(lp_T.dtype) for name, t in statistics.items()})
    # A token whose sampling log-probability is unknown has ratio 1 and weight 0.
    columns["lp_behav_T"] = columns["lp_behav_T"].where(~columns["broken_T"], lp_T.detach())
    return columns


def _components(terms: Sequence[LossTerm], columns: Columns, step: int) -> list[Tensor]:
    """Σ w·ℓ of every further term."""
    return [_weighted(t.function.ask(step, columns), columns[f"w.{i}_T"]) for i, t in enumerate(terms)]


def _weighted(loss_T: Tensor, w_T: Tensor) -> Tensor:
    """Σ w·ℓ over tokens that weigh something; a token of weight 0 gives no gradient, whatever its loss."""
    return (loss_T.where(w_T != 0, torch.zeros_like(loss_T)) * w_T).sum()
