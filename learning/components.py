"""Further terms of the loss, per sampled token; each has its own coefficient and may have its own weights.

What a term asks for by the names of its parameters is what the loop computes: `lp_ref_T` costs a forward pass of the
reference policy, `entropy_T` a pass over the logits.
Shapes: T sampled tokens.
"""

from typing import Literal

from torch import Tensor

LIMIT = 20.0


def kl(
    lp_T: Tensor,
    lp_ref_T: Tensor,
    lp_behav_T: Tensor,
    *,
    estimator: Literal["k1", "k2", "k3"] = "k3",
    importance: bool = False,
) -> Tensor:
    """Estimate of KL(policy ‖ reference) at the sampled tokens (Schulman 2020).

    With r = log p_ref − log p: k1 = −r, k2 = r²/2, k3 = eʳ − 1 − r. As a loss on own samples, k2 has the gradient of
    the reverse KL, k3 that of the forward KL, k1 none in expectation. `importance` multiplies by p/p_behav, gradient
    included, which gives k1 and k3 the gradient of the reverse KL, off-policy too.
    """
    r_T = (lp_ref_T - lp_T).clamp(-LIMIT, LIMIT)
    estimate_T = {"k1": lambda: -r_T, "k2": lambda: r_T.square() / 2, "k3": lambda: r_T.expm1() - r_T}[estimator]()
    return estimate_T * (lp_T - lp_behav_T).clamp(-LIMIT, LIMIT).exp() if importance else estimate_T


def entropy(entropy_T: Tensor) -> Tensor:
    """Entropy bonus: minus the entropy of the policy at each sampled token."""
    return -entropy_T
