"""Deep Q-learning in conversations about items (UNICORN, Deng et al. 2021), and exploration among what is open."""

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from learning.control.losses.standard import Algorithm, Share, follow
from learning.control.networks.build import Networks
from learning.control.networks.conversation_graph import Graph, find_sizes
from learning.control.stepping.spaces import Spaces
from schemas.number_schedules import ScheduledFloat

Most = Annotated[int, Field(ge=1)]


def conversation_dqn(
    networks: Networks,
    *,
    gamma: Share = 0.999,
    tau: Share = 0.01,
    items: Most = 10,
    attributes: Most = 10,
    double: bool = True,
) -> Algorithm:
    """Dueling double Q-learning on the graph of a conversation (Deng et al. 2021).

    One choice among the best `items` by weight and the best `attributes` by weighted entropy. With `double`, the
    trained network chooses in targets.
    """
    from torchrl.objectives import DQNLoss

    actor = networks.make_conversation_values()
    actor[0].module.kept.copy_(torch.tensor([float(items), float(attributes)]))
    loss = DQNLoss(actor, action_space="categorical", double_dqn=double, delay_value=True)
    loss.make_value_estimator(gamma=gamma)
    return Algorithm(loss, actor, "make_conversation_values", ("loss",), follow(loss, tau), error_power=2)


def epsilon_among_open(
    action_N: np.ndarray,
    observation_NO: np.ndarray,
    spaces: Spaces,
    rng: np.random.Generator,
    *,
    epsilon: ScheduledFloat = 0.1,
) -> np.ndarray:
    """Replace choices with probability `epsilon` by random ones of all items and attributes that are still open."""
    open_NA = Graph.read(torch.from_numpy(observation_NO), *find_sizes(spaces)).find_open().numpy()
    replaced_N = rng.random(action_N.shape) < epsilon
    drawn_N = (rng.random(open_NA.shape) * open_NA).argmax(1)
    return np.where(replaced_N & open_NA.any(1), drawn_N, action_N)


def ask_while_many(observation_NO: np.ndarray, spaces: Spaces, *, few: Most = 3) -> np.ndarray:
    """Ask for the attribute with the highest weighted entropy while more than `few` items are possible, else recommend.

    Where no attribute is open, the item with the highest weight is recommended, too.
    """
    items, attributes = find_sizes(spaces)
    graph = Graph.read(torch.from_numpy(observation_NO), items, attributes)
    best_NA = graph.keep_best(1, 1).numpy()
    asks_N = ((graph.weight_BV > 0).sum(1).numpy() > few) & best_NA[:, items:].any(1)
    return np.where(asks_N, items + best_NA[:, items:].argmax(1), best_NA[:, :items].argmax(1))
