"""Controllers: numbers that are set from metrics while training; any number of a recipe can be `{controller: name}`.

Controllers with a parameter `metrics` (of the last iteration) run once per iteration; those with columns as parameters
run before every optimiser step over the whole mini-batch. `state` is saved in the checkpoint. An iteration without the
metric that a controller reads (one that trained nothing) leaves its number unchanged.

Shapes: T sampled tokens.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from learning.batch.token_measures import ENTROPY_FLOOR
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat

Above0 = Annotated[float, Field(gt=0)]
Above1 = Annotated[int, Field(ge=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
From0 = Annotated[float, Field(ge=0)]
Range = Annotated[list[float], Field(min_length=2, max_length=2)]
LIMIT = 20.0
"""Log-ratios are clamped to ± this, as in the policy losses."""


def adaptive_kl(
    metrics: dict,
    state: dict,
    *,
    target: Above0,
    initial: Above0 = 0.2,
    gain: Above0 = 0.1,
    limit: Above0 = 0.2,
    metric: str = "kl",
) -> float:
    """Adaptive KL coefficient: β ← β·(1 + gain·clip(KL/target − 1, ±limit)) (Ziegler et al. 2019, section 2.2)."""
    beta = state.setdefault("beta", initial)
    if metric in metrics:
        error = min(max(metrics[metric] / target - 1, -limit), limit)
        state["beta"] = beta = beta * (1 + gain * error)
    return beta


def pid(
    metrics: dict,
    state: dict,
    *,
    metric: str,
    target: float = 0.0,
    of: Literal["value", "change"] = "value",
    initial: float = 0.0,
    kp: float = 0.0,
    ki: float = 0.0,
    kd: float = 0.0,
    low: float = 0.0,
    high: float = 1.0,
    decay: Decay = 0.0,
    sum_limit: Above0 | None = None,
) -> float:
    """PID controller on a metric: initial + kp·e + ki·Σe + kd·Δe with e = metric − target, clipped to [`low`, `high`].

    `decay` is the weight on the past of a moving average of the metric, which starts at the first value. `of: change`
    uses the change since the last iteration. The sum is kept within ± `sum_limit`; without one it is not updated while
    it would push the number further out of its range. Raise StepError if `low` is above `high`.
    """
    if low > high:
        raise StepError(f"controller pid: low {low} is above high {high}; swap them")
    if metric in metrics:
        before = state.get("point")
        state["point"] = point = metrics[metric] if before is None else decay * before + (1 - decay) * metrics[metric]
        if of == "value" or before is not None:
            error = (point if of == "value" else point - before) - target
            _regulate(state, error, initial, (kp, ki, kd), (low, high), sum_limit)
    return state.get("value", min(max(initial, low), high))


def _regulate(
    state: dict,
    error: float,
    initial: float,
    gains: tuple[float, float, float],
    band: tuple[float, float],
    sum_limit: float | None,
) -> None:
    """Advance a PID controller by one step."""
    (kp, ki, kd), (low, high) = gains, band
    total = state.get("sum", 0.0) + error
    if sum_limit is not None:
        total = min(max(total, -sum_limit), sum_limit)
    free = initial + kp * error + ki * total + kd * (error - state.get("error", error))
    state["value"] = min(max(free, low), high)
    state["error"] = error
    outward = (free > high and ki * error > 0) or (free < low and ki * error < 0)
    if sum_limit is not None or not outward:
        state["sum"] = total


def entropy_target(
    metrics: dict,
    state: dict,
    *,
    target: From0 = 0.2,
    rate: Above0 = 0.005,
    initial: From0 = 0.0,
    high: Above0 = 1.0,
    metric: str = "entropy",
) -> float:
    """Adaptive entropy bonus: the coefficient rises by `rate` below the target entropy and falls above (Skywork-OR1).

    The steps are additive, within 0 and `high`, so that it can leave 0 again; above the target the controller returns 0
    (He et al. 2025, arXiv:2505.22312, 3.2.5).
    """
    coef = state.setdefault("coef", initial)
    if metric not in metrics:
        return coef
    below = metrics[metric] < target
    state["coef"] = coef = min(max(coef + (rate if below else -rate), 0.0), high)
    return coef if below else 0.0


def entropy_gated(
    metrics: dict,
    state: dict,
    *,
    threshold: ScheduledFloat = 0.3,
    coef: From0 = 0.1,
    floor: Above0 = 2.0,
    least: From0 = 0.5,
    decay: Decay = 0.9,
    start: From0 | None = None,
    give: Literal["penalty", "slope"] = "penalty",
) -> float:
    """KL penalty of SAFE: coef·(KL − threshold)²·max(least, floor/(H + 0.1)) above the threshold, 0 below it.

    KL is the moving average of the metric `kl` (weight `decay` on the past, from `start`; null: from the first value),
    H the metric `entropy`: at low entropy, where a policy collapses, the factor is up to 10·floor; at high entropy,
    where it explores, `least`. `give: slope` returns the derivative by KL, 2·coef·(KL − threshold)·max(…): as the
    coefficient of the term `kl` with estimator k2, whose gradient is that of KL, it gives the gradient of the penalty.
    """
    if "kl" in metrics and "entropy" in metrics:
        before = state.get("kl", start)
        state["kl"] = metrics["kl"] if before is None else decay * before + (1 - decay) * metrics["kl"]
        state["entropy"] = metrics["entropy"]
    if "kl" not in state:
        return 0.0
    excess = max(state["kl"] - threshold, 0.0)
    height = excess**2 if give == "penalty" else 2 * excess
    return coef * height * max(least, floor / (state["entropy"] + 0.1))


def past_mean(metrics: dict, state: dict, *, metric: str = "entropy", window: Above1 | None = None) -> float:
    """Mean of a metric over the iterations so far, or over the last `window` of them; 0 before there is one."""
    past = state.setdefault("past", [])
    if metric in metrics:
        past = state["past"] = [*past, metrics[metric]][-window if window else 0 :]
    return sum(past) / len(past) if past else 0.0


def recap(
    metrics: dict,
    state: dict,
    *,
    objective: str,
    best: dict[str, float],
    window: Annotated[int, Field(ge=2)] = 5,
    temperature: Above0 = 5.0,
) -> float:
    """Weight of one of K objectives: K·softmax((c + i)/T), c = μ/μ_before, i = σ/(μ + μ_before) (RECAP).

    `best` maps the metric of each objective to its best value; the loss is the distance to it. μ and σ are mean and
    deviation of a loss over a window of iterations, μ_before the mean over the window before; until there are two
    windows all weights are 1. An objective whose loss still falls has a lower weight than one that stalls or is
    volatile. Raise StepError if the objective is not in `best`.
    """
    if objective not in best:
        raise StepError(f"controller recap: no objective {objective!r} in best, which has: {', '.join(best)}")
    if all(name in metrics for name in best):
        history = state.setdefault("losses", {name: [] for name in best})
        for name, goal in best.items():
            history[name] = [*history[name], abs(metrics[name] - goal)][-2 * window :]
    losses = state.get("losses", {})
    if any(len(losses.get(name, [])) < 2 * window for name in best):
        return 1.0
    return compute_softmax_weights({name: compute_signal(losses[name]) for name in best}, temperature)[objective]


def compute_signal(losses: list[float]) -> float:
    """Return convergence plus instability of a loss over two consecutive windows; 0 if it was 0 throughout.

    If the mean of the first window is 0, half the mean of the second replaces it, as if the loss had doubled.
    """
    half = len(losses) // 2
    before, now = sum(losses[:half]) / half, losses[half:]
    mean = sum(now) / half
    spread = math.sqrt(sum((x - mean) ** 2 for x in now) / half)
    before = before or mean / 2
    return mean / before + spread / (mean + before) if before else 0.0


def compute_softmax_weights(signals: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Return K·softmax(compute_signal / temperature), whose mean is 1."""
    top = max(signals.values())
    raised = {name: math.exp((s - top) / temperature) for name, s in signals.items()}
    total = sum(raised.values())
    return {name: len(raised) * value / total for name, value in raised.items()}


def bapo(
    lp_T: Tensor,
    lp_behav_T: Tensor,
    advantage_T: Tensor,
    *,
    give: Literal["epsilon", "epsilon_high"],
    low: Range = [0.6, 0.9],  # noqa: B006 — never written to
    high: Range = [1.2, 3.0],  # noqa: B006 — never written to
    low_step: Above0 = 0.02,
    high_step: Above0 = 0.05,
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5,
    first: Literal["low", "high"] = "low",
) -> float:
    """Clip bound that keeps the share of positive advantages in the loss (BAPO, Xi et al. 2025, arXiv:2510.18927).

    With P = Σ min(ρ, c_high)·A over A ≥ 0 and N = Σ max(ρ, c_low)·|A| over A < 0, the bounds rise from the start of
    their ranges, the `first` one to its end before the other, until P / (P + N) is `share` or both are at their ends.
    `give` selects the result: `epsilon` is 1 − c_low, `epsilon_high` c_high − 1; use two controllers with the same
    options for both. Raise StepError if a range does not rise.
    """
    if low[0] > low[1] or high[0] > high[1]:
        raise StepError(f"controller bapo: the ranges low {low} and high {high} must rise; give each as [start, end]")
    ratio_T = (lp_T.double() - lp_behav_T.double()).clamp(-LIMIT, LIMIT).exp()
    steps = {"low": (low_step, low), "high": (high_step, high)}
    bounds = {"low": low[0], "high": high[0]}
    for name in (first, "high" if first == "low" else "low"):
        by, (start, end) = steps[name]
        count = 0
        while (
            compute_positive_share(ratio_T, advantage_T, bounds["low"], bounds["high"]) < share and bounds[name] < end
        ):
            count += 1
            bounds[name] = min(start + count * by, end)
    return 1 - bounds["low"] if give == "epsilon" else bounds["high"] - 1


def compute_positive_share(ratio_T: Tensor, advantage_T: Tensor, low: float, high: float) -> float:
    """Return P / (P + N), the share of positive advantages in the clipped loss; 1 if the loss is 0."""
    up_T = advantage_T >= 0
    positive = float((ratio_T.clamp(max=high) * advantage_T)[up_T].sum())
    negative = float((ratio_T.clamp(min=low) * -advantage_T)[~up_T].sum())
    return positive / (positive + negative) if positive + negative > 0 else 1.0


def log_entropy_quantile(entropy_behav_T: Tensor, *, q: Annotated[float, Field(ge=0, le=1)]) -> float:
    """Quantile of the log-entropies of the mini-batch's tokens, without interpolation (HAPO, Liu et al. 2025)."""
    if not len(entropy_behav_T):
        return 0.0
    return float(entropy_behav_T.double().clamp(min=ENTROPY_FLOOR).log().quantile(q, interpolation="nearest"))
