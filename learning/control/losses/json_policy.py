"""Proximal policy optimisation on observations that are JSON of any shape (json2vec, Woof and Chen 2020)."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from learning.control.losses.standard import Algorithm, Share, ppo
from learning.control.networks.build import JsonNetworks, Networks
from learning.control.networks.json_encoder import LeafSum, TreeEncoder

FORMS = {"tree": ("make_json_actor", TreeEncoder), "leaf_sum": ("make_leaf_sum_actor", LeafSum)}
"""Functions of `Networks` that make the actors, and encoders, by name."""


def json_ppo(
    networks: Networks,
    *,
    encoder: Literal["tree", "leaf_sum"] = "tree",
    gamma: Share = 0.99,
    lmbda: Share = 0.95,
    clip_epsilon: Annotated[float, Field(gt=0)] = 0.2,
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0,
    critic_coef: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """PPO whose policy and values read JSON: the world is `as_json`.

    The encoder `tree` follows the structure; `leaf_sum` adds up numbers and texts, each seen with its place.
    """
    from torchrl.objectives.value import GAE

    form, kind = FORMS[encoder]
    algorithm = ppo(
        JsonNetworks(networks.spaces, networks.settings, kind),
        gamma=gamma,
        lmbda=lmbda,
        clip_epsilon=clip_epsilon,
        entropy_coef=entropy_coef,
        critic_coef=critic_coef,
    )
    # Trees are laid out from the bytes of a batch, which `vmap` hides.
    critic = algorithm.advantage.value_network
    advantage = GAE(gamma=gamma, lmbda=lmbda, value_network=critic, average_gae=False, deactivate_vmap=True)
    return replace(algorithm, actor_form=form, advantage=advantage)
