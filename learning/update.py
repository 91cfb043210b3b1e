"""One RL update: passes over a batch, one optimiser step per mini-batch, gradients summed over micro-batches.

Shapes: T sampled tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learning.algorithm import Algorithm
from learning.batch import Batch
from learning.optimize import clip_gradients
from learning.packed import packed_logprobs
from learning.policy_loss import micro_loss, with_weights
from learning.split import micro_batches, mini_batches
from schemas.stages.rl import Rl


@dataclass
class Sums:
    """Means over tokens, gathered micro-batch by micro-batch; `gap` is a maximum."""

    tokens: int = 0
    clipped: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    kl_to_sampler: float = 0.0
    gap: float = 0.0

    def add(self, columns: dict[str, Tensor], first: bool) -> None:
        """Add one micro-batch; `first`: nothing has been learned from this batch yet."""
        lp_T, behav_T = columns["lp_T"], columns["lp_behav_T"]
        active_T = (columns["w"] != 0) & (columns["advantage_T"] != 0)
        self.tokens += len(lp_T)
        self.clipped += float((active_T & (columns["policy_grad_T"] == 0)).sum())
        self.entropy += float(columns["entropy_T"].sum())
        self.kl_to_sampler += float(_k3(lp_T, behav_T).sum())
        if "lp_ref_T" in columns:
            self.kl += float(_k3(lp_T, columns["lp_ref_T"]).sum())
        if first and len(lp_T):
            self.gap = max(self.gap, float((lp_T - behav_T).abs().max()))

    def means(self, has_reference: bool) -> dict[str, float]:
        """Points for the curves."""
        n = max(self.tokens, 1)
        found = {
            "clip_fraction": self.clipped / n,
            "entropy": self.entropy / n,
            "kl_to_sampler": self.kl_to_sampler / n,
        }
        return {**found, "logprob_gap": self.gap, **({"kl": self.kl / n} if has_reference else {})}


def _k3(lp_T: Tensor, other_T: Tensor) -> Tensor:
    """Estimate of KL(policy ‖ other) at each token."""
    r_T = (other_T - lp_T).clamp(-20, 20)
    return r_T.expm1() - r_T


@torch.no_grad()
def with_reference(batch: Batch, model: Any, *, max_tokens: int, temperature: float) -> Batch:
    """Add the token column `lp_ref`: log-probabilities of a reference policy, at the sampling temperature."""
    lp_M = torch.zeros(len(batch.tokens["learn"]), dtype=torch.float64)
    for micro in micro_batches(batch.with_tokens(place=batch.sampled_T), max_tokens):
        found_M, _ = packed_logprobs(
            model, micro.packed.to(model.device), temperature=temperature, needed_M=micro.tokens["learn"]
        )
        lp_M[micro.sampled("place")] = found_M.cpu()[micro.sampled_T].double()
    return batch.with_tokens(lp_ref=lp_M[batch.sampled_T])


def update(
    algorithm: Algorithm, model: Any, optimizer: torch.optim.Optimizer, batch: Batch, stage: Rl, step: int
) -> dict[str, float]:
    """Train on a batch that carries advantages (and `lp_ref` where it is needed); returns points for the curves."""
    sums, norms = Sums(), []
    for i in range(stage.num_iterations):
        for j, mini in enumerate(mini_batches(batch, stage.num_mini_batches)):
            mini = with_weights(algorithm, mini, step, stage.max_completion_length)
            optimizer.zero_grad(set_to_none=True)
            for micro in micro_batches(mini, stage.max_tokens_per_micro_batch):
                loss, columns = micro_loss(algorithm, model, micro, step=step, temperature=stage.temperature)
                loss.backward()
                sums.add(columns, first=i == j == 0)
            norms.append(clip_gradients(model, stage.max_grad_norm))
            optimizer.step()
    means = sums.means("lp_ref" in batch.tokens)
    return {**means, "grad_norm": sum(norms) / len(norms)} if norms else means
