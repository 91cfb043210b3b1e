"""Deep Q-learning in forms that are filled in by an instruction (QWeb, Gur et al. 2019)."""

from learning.control.losses.standard import Algorithm, Share, follow
from learning.control.networks.build import Networks


def form_dqn(networks: Networks, *, gamma: Share = 0.99, tau: Share = 0.005, double: bool = True) -> Algorithm:
    """Deep Q-learning with a network for forms: every field attends to the instruction (Gur et al. 2019).

    The same weights score every word of every field. With `double`, the trained network chooses in targets.
    """
    from torchrl.objectives import DQNLoss

    actor = networks.make_form_values()
    loss = DQNLoss(actor, action_space="categorical", double_dqn=double, delay_value=True)
    loss.make_value_estimator(gamma=gamma)
    return Algorithm(loss, actor, "make_form_values", ("loss",), follow(loss, tau), error_power=2)
