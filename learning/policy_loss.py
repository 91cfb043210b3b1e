"""The RL loss: Σ over tokens of weight · surrogate, plus coefficient · weight · term for every component.

Weights come from the whole mini-batch (`weights`), the loss of a micro-batch is a plain sum (`micro_loss`).
Shapes: T sampled tokens, P paths.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from learning.advantages import lift, of_rewards
from learning.algorithm import Algorithm, Term, supply
from learning.batch import Batch
from learning.packed import packed_logprobs
from schemas.schedules import value_at


def with_advantages(algorithm: Algorithm, batch: Batch, step: int) -> Batch:
    """Add the token column `advantage`: the pipeline applied to the path column `reward`."""
    column = of_rewards(batch)
    for operation in algorithm.advantage:
        column = operation.at(step)(column, batch)
    return batch.with_tokens(advantage=lift(column, batch).values_X)


def with_dropped(batch: Batch, mask_truncated: bool) -> Batch:
    """Add the token column `dropped`: tokens that weigh nothing in any loss."""
    dropped_T = batch.sampled("broken")
    if mask_truncated:
        dropped_T = dropped_T | batch.paths["truncated"][batch.path_T]
    return batch.with_tokens(dropped=dropped_T)


def with_weights(algorithm: Algorithm, batch: Batch, step: int, max_completion_length: int) -> Batch:
    """Add the token columns `w` and, for each component i, `w.i`, over this whole mini-batch."""
    have = {"batch": batch, "max_completion_length": max_completion_length}
    columns = {"w": supply(algorithm.weigh, step, have)}
    for i, term in enumerate(algorithm.components):
        own_T = supply(term.weigh, step, have) if term.weigh else columns["w"]
        columns[f"w.{i}"] = own_T * value_at(term.coef, step)
    return batch.with_tokens(**columns)


def micro_loss(
    algorithm: Algorithm, model: Any, batch: Batch, *, step: int, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of a micro-batch that carries weights and advantages, and its detached columns at the sampled tokens.

    Backward through the returned loss gives the model's gradient. The column `policy_grad_T` is the derivative of the
    weighted surrogate by each token's log-probability.
    """
    at = batch.sampled_T
    packed = batch.packed.to(model.device)
    wants_entropy = algorithm.needs("entropy_T")
    lp_M, entropy_M = packed_logprobs(
        model,
        packed,
        temperature=temperature,
        entropy=True if wants_entropy else "detached",
        needed_M=batch.tokens["learn"],
    )
    assert entropy_M is not None
    lp_T, entropy_T = lp_M[at], entropy_M[at]
    columns = _columns(batch, lp_T.detach().requires_grad_(), entropy_T.detach().requires_grad_())
    columns["log_ratio_T"] = supply(algorithm.ratio, step, columns)
    policy = _weighted(supply(algorithm.surrogate, step, columns), columns["w"])
    (policy_grad_T,) = torch.autograd.grad(policy, columns["lp_T"], retain_graph=True)
    total = policy + _components(algorithm.components, columns, step)
    grad_lp_T, grad_entropy_T = torch.autograd.grad(total, (columns["lp_T"], columns["entropy_T"]), allow_unused=True)
    loss = (lp_T * grad_lp_T).sum()
    if wants_entropy:
        loss = loss + (entropy_T * grad_entropy_T).sum()
    # The value is the loss, the gradient is chained through the log-probabilities by hand.
    loss = loss + (total - loss).detach()
    return loss, {"policy_grad_T": policy_grad_T, **{k: v.detach() for k, v in columns.items()}}


def _columns(batch: Batch, lp_T: Tensor, entropy_T: Tensor) -> dict[str, Tensor]:
    """Everything that a part of the loss may ask for, by name, on the device and in the precision of `lp_T`."""
    own = ("learn", "owner")
    taken = {k: batch.sampled(k) for k in batch.tokens if k not in own}
    moved = {k: v.to(lp_T.device, lp_T.dtype if v.is_floating_point() else v.dtype) for k, v in taken.items()}
    columns = {k if k.startswith("w") else f"{k}_T": v for k, v in moved.items()}
    # A token whose sampling log-probability is unknown has ratio 1 and weight 0.
    columns["lp_behav_T"] = columns["lp_behav_T"].where(~columns["broken_T"], lp_T.detach())
    return {**columns, "lp_T": lp_T, "entropy_T": entropy_T, "path_T": batch.path_T.to(lp_T.device)}


def _components(terms: Iterable[Term], columns: dict[str, Tensor], step: int) -> Tensor | float:
    return sum(_weighted(supply(t.function, step, columns), columns[f"w.{i}"]) for i, t in enumerate(terms))


def _weighted(loss_T: Tensor, w_T: Tensor) -> Tensor:
    """Σ w·ℓ over tokens that weigh something; a token of weight 0 gives no gradient, whatever its loss."""
    return (loss_T.where(w_T != 0, torch.zeros_like(loss_T)) * w_T).sum()
