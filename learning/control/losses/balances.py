"""A family of policies with different balances of improvement and cloning, and a choice of the balance for each state.

Shapes: B steps, A numbers of an action. (FamO2O, Wang et al. 2023.)
"""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.control.losses.critics import compute_advantage, predict_action_values
from learning.control.losses.standard import Algorithm, Share, follow, require_box
from learning.control.networks.balanced_actor import BalancedActor
from learning.control.networks.build import Networks
from schemas.errors import StepError

LARGEST_WEIGHT = 100.0
Coefficient = Annotated[float, Field(ge=0)]


def balanced_iql(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7,
    lowest: Coefficient = 1.0,
    highest: Coefficient = 5.0,
) -> Algorithm:
    """Critics of implicit Q-learning, and policies for all balances from `lowest` to `highest` (Wang et al. 2023).

    The terms `cloning_by_balance` and `value_of_balance` train the family and the choice of the balance.
    """
    from torchrl.objectives import IQLLoss

    require_box(networks, "balanced_iql")
    if lowest >= highest:
        raise StepError(f"loss balanced_iql: lowest {lowest} must be smaller than highest {highest}")
    actor: Any = networks.make_balanced_actor()
    actor.get_buffer("range").copy_(torch.tensor([lowest, highest]))
    loss: Any = IQLLoss(
        actor, networks.make_action_value(), networks.make_state_value(), loss_function="l2", expectile=expectile
    )
    loss.make_value_estimator(gamma=gamma)
    terms = ("loss_qvalue", "loss_value")
    return Algorithm(loss, actor, "make_balanced_actor", terms, follow(loss, tau))


def require_family(actor: Any, name: str) -> None:
    """Raise StepError unless the actor has a family of policies."""
    if not isinstance(actor, BalancedActor):
        raise StepError(f"loss_terms: {name} needs the family of policies of `loss: balanced_iql`")


def weigh_advantages(advantage_B: Tensor, balance_B1: Tensor) -> Tensor:
    """Return min(exp(b A), 100) of advantages (B,) at balances (B, 1)."""
    return (balance_B1[:, 0] * advantage_B).exp().clamp(max=LARGEST_WEIGHT)


def cloning_by_balance(batch: Any, loss: Any, actor: Any, *, balances: Literal["even", "chosen"] = "even") -> Tensor:
    """Train the family: cloning weighted by min(exp(b (Q − V)), 100), for a balance b of each step.

    b is drawn evenly from the range, or `chosen` for the observation, which gets no gradient. (Wang et al. 2023.)
    """
    require_family(actor, "cloning_by_balance")
    observation_BO = batch["observation"]
    with torch.no_grad():
        lowest, highest = actor.get_buffer("range")
        even_B1 = lowest + torch.rand(len(observation_BO), 1) * (highest - lowest)
        balance_B1 = even_B1 if balances == "even" else actor.choose(observation_BO)
        weight_B = weigh_advantages(compute_advantage(batch, loss), balance_B1)
    policy = actor.family.get_dist(actor.condition(observation_BO, balance_B1))
    return -(weight_B * policy.log_prob(batch["action"])).mean()


def value_of_balance(batch: Any, loss: Any, actor: Any) -> Tensor:
    """Train the choice of the balance: −min Q'(s, a) of the family's likeliest action at the chosen balance.

    Neither the family nor the critics get a gradient. (Wang et al. 2023.)
    """
    require_family(actor, "value_of_balance")
    from tensordict import TensorDict
    from tensordict.nn import InteractionType, set_interaction_type

    observation_BO = batch["observation"]
    shown = actor.condition(observation_BO, actor.choose(observation_BO))
    kept: Any = TensorDict.from_module(actor.family)
    with kept.data.to_module(actor.family), set_interaction_type(InteractionType.DETERMINISTIC):
        action_BA = actor.family(shown)["action"]
    return -predict_action_values(loss, batch, action_BA, target=True).min(0).values.mean()
