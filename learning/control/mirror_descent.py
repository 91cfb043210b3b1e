"""Mirror descent policy optimisation: several gradient steps on a linearised objective near the previous policy.

On-policy the term `kl_to_previous` joins `mdpo`; off-policy the term `mirror_descent` replaces the actor's loss of
`mdpo_off`. (Tomar et al. 2020.)
"""

import copy
from typing import Annotated, Any

import torch
from pydantic import Field

from learning.control.losses import NO_ENTROPY, Algorithm, Share, follow, require_box
from learning.control.networks import Networks


def mdpo(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    lmbda: Share = 0.95,
    critic_coef: Annotated[float, Field(ge=0)] = 0.5,
    normalize_advantage: bool = True,
) -> Algorithm:
    """Linearised objective E[ratio · A] without clipping (Tomar et al. 2020); `kl_to_previous` keeps it near."""
    from torchrl.objectives import PPOLoss
    from torchrl.objectives.value import GAE

    actor, critic = networks.make_stochastic_actor(), networks.make_state_value()
    loss = PPOLoss(
        actor,
        critic,
        entropy_bonus=False,
        critic_coeff=critic_coef,
        loss_critic_type="l2",
        normalize_advantage=normalize_advantage,
    )
    advantage = GAE(gamma=gamma, lmbda=lmbda, value_network=critic, average_gae=False)
    return Algorithm(loss, actor, "make_stochastic_actor", ("loss_objective", "loss_critic"), advantage=advantage)


def mdpo_off(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    num_critics: Annotated[int, Field(ge=1)] = 2,
    entropy: Annotated[float, Field(ge=0)] = 0.0,
    inner_steps: Annotated[int, Field(ge=1)] = 10,
) -> Algorithm:
    """Critics of soft actor-critic, and a previous policy that is renewed every `inner_steps` (Tomar et al. 2020).

    The targets have the entropy at temperature `entropy`. The actor is trained by the term `mirror_descent`.
    """
    from torchrl.objectives import SACLoss

    require_box(networks, "mdpo_off")
    actor = networks.make_stochastic_actor()
    previous = copy.deepcopy(actor).requires_grad_(False)
    loss: Any = SACLoss(
        actor,
        networks.make_action_value(),
        num_qvalue_nets=num_critics,
        alpha_init=max(entropy, NO_ENTROPY),
        fixed_alpha=True,
        target_entropy=0.0,  # of an adapted temperature; TorchRL asks for one
        loss_function="l2",
    )
    loss.make_value_estimator(gamma=gamma)
    loss.previous = previous
    loss.register_buffer("since_previous", torch.zeros((), dtype=torch.int64))
    move_targets = follow(loss, tau)

    def update_targets() -> None:
        move_targets()
        loss.since_previous += 1
        if loss.since_previous % inner_steps == 0:
            previous.load_state_dict(actor.state_dict())

    return Algorithm(loss, actor, "make_stochastic_actor", ("loss_actor", "loss_qvalue"), update_targets)
