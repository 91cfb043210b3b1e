"""Losses of self-play: the policy of the round before is `previous`, a judge's win rates are the pair's scores.

Each is a regression on log-ratios whose minimiser is the next policy of a no-regret dynamic. What they ask for and the
shapes are as in `learning.preference.pair_losses`.
"""

from torch import Tensor

from schemas.number_schedules import ScheduledFloat


def sppo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_prev_P: Tensor,
    rejected_prev_P: Tensor,
    chosen_score_P: Tensor,
    rejected_score_P: Tensor,
    *,
    eta: ScheduledFloat = 1000.0,
) -> Tensor:
    """(log π/π_t − η·(P − ½))² of each completion, both added (Wu et al. 2024, SPPO, eq. 4.7).

    The scores are the win rates P of the completions against the policy they were sampled from.
    """
    chosen_P, rejected_P = chosen_P - chosen_prev_P, rejected_P - rejected_prev_P
    return (chosen_P - eta * (chosen_score_P - 0.5)).square() + (rejected_P - eta * (rejected_score_P - 0.5)).square()


def sppo_hard(
    chosen_P: Tensor, rejected_P: Tensor, chosen_prev_P: Tensor, rejected_prev_P: Tensor, *, eta: ScheduledFloat = 10.0
) -> Tensor:
    """SPPO with win rates 1 and 0, where none were estimated; TRL's `sppo_hard` has β = 1/η."""
    return (chosen_P - chosen_prev_P - eta / 2).square() + (rejected_P - rejected_prev_P + eta / 2).square()


def inpo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    chosen_prev_P: Tensor,
    rejected_prev_P: Tensor,
    *,
    eta: ScheduledFloat,
    tau: ScheduledFloat,
) -> Tensor:
    """(D − τ/η·D_ref − (η − τ)/η·D_prev − 1/(2η))² with D = log-prob of the chosen − that of the rejected.

    Zhang et al. 2024 (INPO): online mirror descent on a general preference, regularised towards the reference by τ; η
    is the inverse of the step size. No win rate is estimated: the label of the pair is enough.
    """
    anchor_P = _anchor(chosen_ref_P - rejected_ref_P, chosen_prev_P - rejected_prev_P, tau / eta)
    return (chosen_P - rejected_P - anchor_P - 1 / (2 * eta)).square()


def nash_md(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_ref_P: Tensor,
    rejected_ref_P: Tensor,
    chosen_prev_P: Tensor,
    rejected_prev_P: Tensor,
    chosen_score_P: Tensor,
    rejected_score_P: Tensor,
    *,
    eta: ScheduledFloat,
    tau: ScheduledFloat,
) -> Tensor:
    """(D − D_mix − (P_chosen − P_rejected)/η)²: a step of Nash-MD, fitted on pairs.

    The next policy is ∝ π_mix·exp(P/η) with the geometric mixture π_mix ∝ π_ref^(τ/η)·π_prev^(1 − τ/η) (Munos et al.
    2023, Nash-MD, where 1/η is the step size); the normalisers are lost in the difference of a pair.
    """
    anchor_P = _anchor(chosen_ref_P - rejected_ref_P, chosen_prev_P - rejected_prev_P, tau / eta)
    return (chosen_P - rejected_P - anchor_P - (chosen_score_P - rejected_score_P) / eta).square()


def rebel(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_prev_P: Tensor,
    rejected_prev_P: Tensor,
    margin_P: Tensor,
    *,
    eta: ScheduledFloat = 1.0,
) -> Tensor:
    """((change of D since π_t)/η − margin)²: regression on differences of reward (Gao et al. 2024, REBEL)."""
    change_P = (chosen_P - chosen_prev_P) - (rejected_P - rejected_prev_P)
    return (change_P / eta - margin_P).square()


def _anchor(ref_P: Tensor, prev_P: Tensor, share: float) -> Tensor:
    """Difference of log-probabilities under the geometric mixture of reference and previous policy."""
    return share * ref_P + (1 - share) * prev_P
