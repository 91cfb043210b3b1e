"""Settings and slots that the kinds of control share: worlds, networks, acting, losses."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.base import Schema
from schemas.evaluation_slots import MetricUse
from schemas.number_schedules import Number
from schemas.use import Use

BY_ID = "gymnasium"
"""Function that makes an environment by Gymnasium's id."""
MINIGRID = "minigrid"
"""Function that makes one of MiniGrid's, and the module that ids with it name: `minigrid:MiniGrid-Empty-5x5-v0`."""


def name_modules(folder: str, names: str) -> tuple[str, ...]:
    """Return the full names of modules of a folder of `learning.control`; `names` has spaces between them."""
    return tuple(f"learning.control.{folder}.{name}" for name in names.split())


class NetworkSettings(Schema):
    """Sizes of the networks; actors and values have the same."""

    hidden_sizes: list[Annotated[int, Field(ge=1)]] = [64, 64]
    """Sizes of the hidden layers; none: a single linear layer, on one-hot observations a table."""
    activation: Literal["relu", "tanh", "elu"] = "relu"
    """Function between layers."""
    layer_norm: bool = False
    """Normalise the hidden layers of values of observations and actions."""
    privileged: int = Field(default=0, ge=0)
    """How many numbers at the end of an observation only the values see, not the actor."""
    share_agents: bool = False
    """Whether the agents of a team have one network together, each with what it sees itself."""
    heads: int = Field(default=1, ge=1)
    """Attention heads of a transformer, as that of `decision_transformer`."""
    context: int = Field(default=20, ge=1)
    """Steps that a transformer looks back on."""
    longest_episode: int = Field(default=1000, ge=1)
    """Most steps of an episode that a transformer can number."""


class WorldUse(Use):
    """Returns an environment of Gymnasium; `Pendulum-v1` stands for `{use: gymnasium, id: Pendulum-v1}`.

    `minigrid:MiniGrid-Empty-5x5-v0` stands for `{use: minigrid, id: MiniGrid-Empty-5x5-v0}`.
    """

    home = (
        "learning.control.stepping",
        "learning.control.worlds",
        "learning.control.tables",
        "learning.control.rounds",
    )
    takes = ()
    plain = r"^([A-Za-z_][\w.]*:)?[\w./-]+-v\d+$"

    @model_validator(mode="before")
    @classmethod
    def accept_id(cls, value: Any) -> Any:
        """Accept Gymnasium's ids, with or without the module that registers them; other texts name functions."""
        if not isinstance(value, str) or not re.fullmatch(cls.plain, value):
            return value
        module, _, name = value.rpartition(":")
        return {"use": MINIGRID, "id": name} if module == MINIGRID else {"use": BY_ID, "id": value}


class ActingUse(Use):
    """Chooses an action without a network: at random, or by a rule."""

    home = (
        *name_modules("policies", "acting grid_acting experts safe_sets"),
        *name_modules(
            "worlds", "tabular locks points gem_grids histories windy_pendulum cities motors pillars doors watermarks"
        ),
        *name_modules("losses", "action_programs conversation_values"),
        *name_modules("reports", "compatibility"),
    )
    asks = frozenset({"observation_NO", "spaces", "rng"})


class ExplorationUse(Use):
    """Changes actions of the policy while steps are collected."""

    home = (
        *name_modules("policies", "exploration interventions safe_sets"),
        *name_modules("losses", "action_programs conversation_values"),
    )
    asks = frozenset({"action_N", "observation_NO", "spaces", "rng", "step"})


class RelabelUse(Use):
    """Replaces columns of own steps before they are kept: it returns new arrays under their names."""

    home = (
        *name_modules("policies", "relabelling safe_sets"),
        *name_modules("rewards", "weighted_costs online_labels"),
        *name_modules("worlds", "forms"),
    )
    asks = frozenset(
        {"observation_NO", "action_N", "reward_N", "next_observation_NO", "kept_KO", "spaces", "rng", "step", "state"}
    )


class CaptionUse(Use):
    """Says in words what happened in a step of each world; an empty text for nothing."""

    home = ("learning.control.worlds.key_doors",)
    asks = frozenset({"observation_NO", "action_N", "next_observation_NO"})


class CostsUse(Use):
    """Gives every step costs by name, before they are weighted."""

    home = ("learning.control.worlds.quadrotors",)
    asks = frozenset({"observation_NO", "action_N", "next_observation_NO"})


class TaskTeacherUse(Use):
    """Chooses the task of the next episode by what episodes of other tasks returned."""

    home = ("learning.control.rounds.task_teachers", "learning.control.rounds.allocations")
    asks = frozenset({"task_KD", "return_K", "low", "high", "rng", "value_of"})


class PriorityUse(Use):
    """Says how likely a kept step is drawn again, from the error of its last update."""

    home = ("learning.control.buffers.replay",)
    asks = frozenset({"error_B", "batch"})


class ExperienceUse(Use):
    """Gives steps that a table of values is updated by: kept ones, or those of a model."""

    home = ("learning.control.tables.dyna",)
    asks = frozenset({"kept", "rng", "count", "spaces"})


class HeuristicUse(Use):
    """Gives every step a further reward, which may help or mislead."""

    home = ("learning.control.rewards.heuristics",)
    asks = frozenset({"observation_NO", "action_N", "spaces"})


class SegmentDuelUse(Use):
    """Says how likely one piece of an episode is preferred to another."""

    home = ("learning.control.rewards.segment_duels",)
    asks = frozenset({"first", "second"})


class SegmentRewardUse(Use):
    """Gives pieces of episodes rewards, in place of those of their steps."""

    home = ("learning.control.rewards.segments",)
    asks = frozenset({"segments", "spaces", "rng", "step"})


class RuleUse(Use):
    """Says of each world whether something holds, such as that an expert takes over."""

    home = ("learning.control.policies.rules",)
    asks = frozenset({"observation_NO"})


class TellUse(Use):
    """Says in words what each observation shows, one text for each."""

    home = ("learning.control.worlds.guidance",)
    asks = frozenset({"observation_NO"})


class RaterUse(Use):
    """Rates an episode of the data, as a person would who is asked which of two is better."""

    home = ("learning.control.worlds.points",)
    asks = frozenset({"observation_KO"})


class ControlLossUse(Use):
    """Builds networks and the loss that trains them."""

    home = ("learning.control.losses", "learning.control.tables")
    takes = ("networks",)


class ControlTermUse(Use):
    """A term of the loss: a further one, or, under the name of one that the loss has, in its place."""

    home = (
        *name_modules("losses", "terms imitation references dynamics advantage_guidance balances"),
        *name_modules("losses", "dynamics_gap experience_selection bisimulation"),
    )
    asks = frozenset({"batch", "data_batch", "loss", "actor", "spaces", "step"})
    coef: Number = 1.0
    """Factor of the term; a number schedule is allowed."""


class ControlMetricUse(MetricUse):
    """A number from the returns of a policy's episodes."""

    home = ("learning.control.reports.metrics",)
    asks = frozenset({"score_PN"})
