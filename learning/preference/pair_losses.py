"""Losses of preference pairs against a reference: DPO and its relatives. Each gives one loss per pair; lower is better.

A function asks by the names of its parameters, and what no loss asks for is not computed: without `_ref` no reference
policy is loaded. `chosen`, `rejected`: log-probability of the whole completion under the policy that is trained, with
its gradient; `_ref`, `_prev`: under the stage's `reference` and `previous`; `_tokens`: length; `_score`: what was
noted about a completion when the pair was made; `margin`: of the pair; `kl`: KTO's baseline. `state` is the function's
own memory. `_present` is 1, or 0 for the side that a row with a label lacks: only a function that asks for it takes
such rows.

Shapes: P pairs of one forward pass; B all pairs of the optimiser step. What asks for `chosen_B` compares pairs with
each other: the policy then runs over all of them before any gradient is taken, and the micro-batches do not show.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from schemas.base import JsonObject
from schemas.number_schedules import ScheduledFloat

Flipped = Annotated[float, Field(ge=0, lt=0.5)]
"""Share of the pairs whose label is taken to be wrong."""
Divergence = Literal["reverse_kl", "forward_kl", "js", "alpha"]


def dpo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    *,
    beta: ScheduledFloat = 0.1,
    label_smoothing: Flipped = 0.0,
    divergence: Divergence = "reverse_kl",
    alpha: float = 0.5,
) -> Tensor:
    """−log σ(β·h) with h = f′(π/π_ref of the chosen) − f′(… of the rejected); TRL's `sigmoid`.

    Rafailov et al. 2023, eq. 7: f′ = log. `label_smoothing` ε mixes in ε of the other order (cDPO, Mitchell 2023).
    `divergence` is that of the regulariser (Wang et al. 2023, f-DPO, table 1); `alpha` is of the one so named.
    """
    chosen = _derivative(chosen_P - chosen_ref_P, divergence, alpha)
    rejected = _derivative(rejected_P - rejected_ref_P, divergence, alpha)
    return _smoothed(beta * (chosen - rejected), label_smoothing)


def dpo_norm(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    chosen_tokens_P: Tensor,
    rejected_tokens_P: Tensor,
    *,
    beta: ScheduledFloat = 5.0,
    label_smoothing: Flipped = 0.0,
) -> Tensor:
    """DPO on log-ratios per token, which length cannot buy (Lambert et al. 2024, Tülu 3); TRL's `sigmoid_norm`."""
    chosen = (chosen_P - chosen_ref_P) / chosen_tokens_P
    return _smoothed(beta * (chosen - (rejected_P - rejected_ref_P) / rejected_tokens_P), label_smoothing)


def dpop(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    *,
    beta: ScheduledFloat = 0.3,
    penalty: ScheduledFloat = 50.0,
) -> Tensor:
    """DPO that does not let the chosen fall below the reference (DPO-Positive, Pal et al. 2024)."""
    fallen = (chosen_ref_P - chosen_P).clamp(min=0)
    return -logsigmoid(beta * (_gap(chosen_P, rejected_P, chosen_ref_P, rejected_ref_P) - penalty * fallen))


def odpo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    margin_P: Tensor,
    *,
    beta: ScheduledFloat = 0.1,
    alpha: ScheduledFloat = 1.0,
    scaling: Literal["identity", "log"] = "log",
) -> Tensor:
    """DPO with an offset that grows with the pair's margin (ODPO, Amini et al. 2024)."""
    offset = margin_P.log() if scaling == "log" else margin_P
    return -logsigmoid(beta * _gap(chosen_P, rejected_P, chosen_ref_P, rejected_ref_P) - alpha * offset)


def robust(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    *,
    beta: ScheduledFloat = 0.1,
    label_smoothing: Flipped = 0.1,
) -> Tensor:
    """DPO, unbiased when a share `label_smoothing` of the labels is flipped (Chowdhury et al. 2024)."""
    h = beta * _gap(chosen_P, rejected_P, chosen_ref_P, rejected_ref_P)
    clean, flipped = -logsigmoid(h), -logsigmoid(-h)
    return ((1 - label_smoothing) * clean - label_smoothing * flipped) / (1 - 2 * label_smoothing)


def hinge(
    chosen_P: Tensor, rejected_P: Tensor, chosen_ref_P: Tensor, rejected_ref_P: Tensor, *, beta: ScheduledFloat = 0.1
) -> Tensor:
    """max(0, 1 − β·h): SLiC's loss on DPO's log-ratios (Zhao et al. 2023; Liu et al. 2023, RSO)."""
    return (1 - beta * _gap(chosen_P, rejected_P, chosen_ref_P, rejected_ref_P)).clamp(min=0)


def ipo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    chosen_tokens_P: Tensor,
    rejected_tokens_P: Tensor,
    *,
    beta: ScheduledFloat = 0.1,
    per_token: bool = True,
) -> Tensor:
    """(h − 1/(2β))², regression instead of separation (Azar et al. 2023, eq. 17, where β is called τ).

    `per_token`: log-ratios are means over tokens, as in the paper's experiments and in TRL; else sums, as written.
    """
    chosen, rejected = chosen_P - chosen_ref_P, rejected_P - rejected_ref_P
    if per_token:
        chosen, rejected = chosen / chosen_tokens_P, rejected / rejected_tokens_P
    return (chosen - rejected - 1 / (2 * beta)).square()


def exo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    *,
    beta: ScheduledFloat = 0.1,
    label_smoothing: Annotated[float, Field(gt=0, lt=0.5)] = 1e-3,
) -> Tensor:
    """KL(policy's preference ‖ smoothed label), the reverse of DPO's (Ji et al. 2024, eq. 16); TRL's `exo_pair`."""
    h = beta * _gap(chosen_P, rejected_P, chosen_ref_P, rejected_ref_P)
    weighted = h.sigmoid() * (logsigmoid(h) - math.log1p(-label_smoothing))
    return weighted + (-h).sigmoid() * (logsigmoid(-h) - math.log(label_smoothing))


def nca(
    chosen_P: Tensor, rejected_P: Tensor, chosen_ref_P: Tensor, rejected_ref_P: Tensor, *, beta: ScheduledFloat = 0.1
) -> Tensor:
    """Noise contrastive alignment of a pair: each side on its own scale (Chen et al. 2024, NCA); TRL's `nca_pair`."""
    chosen, rejected = beta * (chosen_P - chosen_ref_P), beta * (rejected_P - rejected_ref_P)
    return -logsigmoid(chosen) - logsigmoid(-chosen) / 2 - logsigmoid(-rejected) / 2


def apo_zero(
    chosen_P: Tensor, rejected_P: Tensor, chosen_ref_P: Tensor, rejected_ref_P: Tensor, *, beta: ScheduledFloat = 0.1
) -> Tensor:
    """Chosen up, rejected down: for completions better than the policy's (D'Oosterlinck et al. 2024, eq. 7)."""
    return 1 - (beta * (chosen_P - chosen_ref_P)).sigmoid() + (beta * (rejected_P - rejected_ref_P)).sigmoid()


def apo_down(
    chosen_P: Tensor, rejected_P: Tensor, chosen_ref_P: Tensor, rejected_ref_P: Tensor, *, beta: ScheduledFloat = 0.1
) -> Tensor:
    """Both down, the rejected more: for completions worse than the policy's (D'Oosterlinck et al. 2024, eq. 8)."""
    h = beta * _gap(chosen_P, rejected_P, chosen_ref_P, rejected_ref_P)
    return (beta * (chosen_P - chosen_ref_P)).sigmoid() + 1 - h.sigmoid()


def discopop(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    *,
    beta: ScheduledFloat = 0.05,
    tau: Annotated[float, Field(gt=0)] = 0.05,
) -> Tensor:
    """A blend of the logistic and the exponential loss, found by search (Lu et al. 2024, DiscoPOP, eq. 5)."""
    h = beta * _gap(chosen_P, rejected_P, chosen_ref_P, rejected_ref_P)
    share = (h / tau).sigmoid()
    return (1 - share) * -logsigmoid(h) + share * (-h).exp()


def kto(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    chosen_present_P: Tensor,
    rejected_present_P: Tensor,
    kl: Tensor,
    *,
    beta: ScheduledFloat = 0.1,
    desirable_weight: ScheduledFloat = 1.0,
    undesirable_weight: ScheduledFloat = 1.0,
) -> Tensor:
    """Utilities of single completions against a baseline, mean of both sides (Ethayarajh et al. 2024, KTO).

    Rows may have one completion with a label. `kl` is the batch's KL to the reference, at least 0, from prompts with
    completions of other prompts.
    """
    desirable = 1 - (beta * (chosen_P - chosen_ref_P - kl)).sigmoid()
    undesirable = 1 - (beta * (kl - (rejected_P - rejected_ref_P))).sigmoid()
    both = desirable_weight * desirable * chosen_present_P + undesirable_weight * undesirable * rejected_present_P
    return both / (chosen_present_P + rejected_present_P)


def bco(
    chosen_B: Tensor,
    rejected_B: Tensor,
    chosen_ref_B: Tensor,
    rejected_ref_B: Tensor,
    chosen_present_B: Tensor,
    rejected_present_B: Tensor,
    state: JsonObject,
    *,
    beta: ScheduledFloat = 0.1,
) -> Tensor:
    """Binary classifier of good and bad, rewards shifted by their mean so far (Jung et al. 2024, BCO).

    Rows may have one completion with a label.
    """
    chosen, rejected = beta * (chosen_B - chosen_ref_B), beta * (rejected_B - rejected_ref_B)
    present = torch.cat([chosen_present_B, rejected_present_B]) > 0
    new = int(present.sum())
    count = state.get("count", 0) + new
    mean = state.get("mean", 0.0)
    mean += (float(torch.cat([chosen, rejected])[present].detach().double().mean()) - mean) * new / count
    state.update(count=count, mean=mean)
    good, bad = -logsigmoid(chosen - mean), -logsigmoid(mean - rejected)
    return good * chosen_present_B + bad * rejected_present_B


def aot(
    chosen_B: Tensor,
    rejected_B: Tensor,
    chosen_ref_B: Tensor,
    rejected_ref_B: Tensor,
    *,
    beta: ScheduledFloat = 0.1,
    label_smoothing: Flipped = 0.0,
) -> Tensor:
    """The policy's gaps dominate the reference's quantile by quantile (Melnyk et al. 2024, AOT, paired)."""
    gaps, ref_gaps = (chosen_B - rejected_B).sort().values, (chosen_ref_B - rejected_ref_B).sort().values
    return _smoothed(beta * (gaps - ref_gaps), label_smoothing)


def aot_unpaired(
    chosen_B: Tensor,
    rejected_B: Tensor,
    chosen_ref_B: Tensor,
    rejected_ref_B: Tensor,
    *,
    beta: ScheduledFloat = 0.1,
    label_smoothing: Flipped = 0.0,
) -> Tensor:
    """Rewards of the chosen dominate those of the rejected quantile by quantile, whatever pair they are of (AOT)."""
    chosen, rejected = (chosen_B - chosen_ref_B).sort().values, (rejected_B - rejected_ref_B).sort().values
    return _smoothed(beta * (chosen - rejected), label_smoothing)


def _gap(chosen_P: Tensor, rejected_P: Tensor, chosen_ref_P: Tensor, rejected_ref_P: Tensor) -> Tensor:
    """How much more the policy prefers the chosen than the reference does."""
    return (chosen_P - chosen_ref_P) - (rejected_P - rejected_ref_P)


def _smoothed(h_P: Tensor, flipped: float) -> Tensor:
    """−log σ(h), with a share of the other order."""
    return -(1 - flipped) * logsigmoid(h_P) - flipped * logsigmoid(-h_P)


def _derivative(log_ratio_P: Tensor, divergence: Divergence, alpha: float) -> Tensor:
    """f′(u) at u = π/π_ref, up to a constant, which the difference of two sides loses.

    Reverse KL log u, forward KL −1/u, Jensen-Shannon log(u/(1 + u)), α-divergence −u^(−α)/α.
    """
    if divergence == "reverse_kl" or (divergence == "alpha" and alpha == 0):
        return log_ratio_P
    if divergence == "forward_kl":
        return -(-log_ratio_P).exp()
    if divergence == "js":
        return logsigmoid(log_ratio_P)
    return -(-alpha * log_ratio_P).exp() / alpha
