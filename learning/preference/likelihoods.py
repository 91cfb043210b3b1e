"""Losses of preference pairs that need no reference policy, and the likelihood of the chosen as a loss.

What they ask for and the shapes are as in `learning.preference.pair_losses`.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid

from schemas.number_schedules import ScheduledFloat

CERTAIN = -1e-7
"""Log-probability per token above which odds are taken to be those of this one: they are infinite at 0."""


def nll(chosen_P: Tensor, chosen_tokens_P: Tensor, chosen_tokens_B: Tensor, *, per_token: bool = False) -> Tensor:
    """Cross-entropy of the chosen completion: mean over its tokens; TRL's `sft`.

    `per_token`: every token of the batch counts the same, so that long completions count more.
    """
    return -chosen_P / (chosen_tokens_B.mean() if per_token else chosen_tokens_P)


def simpo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_tokens_P: Tensor,
    rejected_tokens_P: Tensor,
    *,
    beta: ScheduledFloat = 2.0,
    gamma: ScheduledFloat = 1.0,
) -> Tensor:
    """−log σ(β·(difference of mean log-probs) − γ) (Meng et al. 2024, SimPO, eq. 6)."""
    return -logsigmoid(beta * (chosen_P / chosen_tokens_P - rejected_P / rejected_tokens_P) - gamma)


def cpo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_tokens_P: Tensor,
    *,
    beta: ScheduledFloat = 0.1,
    alpha: ScheduledFloat = 1.0,
) -> Tensor:
    """DPO with a uniform reference, and α times the mean cross-entropy of the chosen (Xu et al. 2024, CPO)."""
    return -logsigmoid(beta * (chosen_P - rejected_P)) - alpha * chosen_P / chosen_tokens_P


def orpo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    chosen_tokens_P: Tensor,
    rejected_tokens_P: Tensor,
    *,
    beta: ScheduledFloat = 0.1,
) -> Tensor:
    """Mean cross-entropy of the chosen, and β times −log σ of the log odds ratio (Hong et al. 2024, ORPO, eq. 6, 7).

    Odds are those of the geometric mean of a completion's token probabilities; the paper calls β λ.
    """
    chosen_P, rejected_P = chosen_P / chosen_tokens_P, rejected_P / rejected_tokens_P
    return -chosen_P - beta * logsigmoid(_log_odds(chosen_P) - _log_odds(rejected_P))


def _log_odds(lp_P: Tensor) -> Tensor:
    """log(p/(1 − p)) of a log-probability."""
    lp_P = lp_P.clamp(max=CERTAIN)
    return lp_P - (-lp_P.expm1()).log()
