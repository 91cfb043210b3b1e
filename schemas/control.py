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
        *("learning.control.worlds", "learning.control.grids"),
        *("learning.control.tabular", "learning.control.factored", "learning.control.cliffs"),
        *("learning.control.locks", "learning.control.points", "learning.control.windy_pendulum"),
        *("learning.control.cities", "learning.control.motors", "learning.control.quadrotors"),
        *("learning.control.poles", "learning.control.pillars", "learning.control.timed_reach"),
        "learning.control.ponds",
        *("learning.control.team_games", "learning.control.model_sets", "learning.control.preference_games"),
        *("learning.control.gem_grids", "learning.control.coupled_bandits", "learning.control.histories"),
        *("learning.control.objectives", "learning.control.reward_rounds", "learning.control.doors"),
        *("learning.control.contexts", "learning.control.forms", "learning.control.conversations"),
        *("learning.control.mini_grids", "learning.control.json_worlds", "learning.control.text_worlds"),
        *("learning.control.guidance", "learning.control.watermarks"),
        "learning.control.key_doors",
        *("learning.control.crafting_grid", "learning.control.world_rounds"),
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
        *("learning.control.acting", "learning.control.grid_acting"),
        *("learning.control.experts", "learning.control.tabular", "learning.control.locks"),
        *("learning.control.points", "learning.control.gem_grids", "learning.control.action_programs"),
        *("learning.control.histories", "learning.control.windy_pendulum", "learning.control.cities"),
        *("learning.control.motors", "learning.control.pillars", "learning.control.compatibility"),
        *("learning.control.safe_sets", "learning.control.doors", "learning.control.conversation_values"),
        "learning.control.watermarks",
    )
    asks = frozenset({"observation_NO", "spaces", "rng"})


class ExplorationUse(Use):
    """Changes actions of the policy while steps are collected."""

    home = (
        *("learning.control.exploration", "learning.control.interventions", "learning.control.action_programs"),
        *("learning.control.safe_sets", "learning.control.conversation_values"),
    )
    asks = frozenset({"action_N", "observation_NO", "spaces", "rng", "step"})


class RelabelUse(Use):
    """Replaces columns of own steps before they are kept: it returns new arrays under their names."""

    home = (
        *("learning.control.relabelling", "learning.control.weighted_costs", "learning.control.forms"),
        *("learning.control.safe_sets", "learning.control.online_labels"),
    )
    asks = frozenset(
        {"observation_NO", "action_N", "reward_N", "next_observation_NO", "kept_KO", "spaces", "rng", "step", "state"}
    )


class CaptionUse(Use):
    """Says in words what happened in a step of each world; an empty text for nothing."""

    home = ("learning.control.key_doors",)
    asks = frozenset({"observation_NO", "action_N", "next_observation_NO"})


class CostsUse(Use):
    """Gives every step costs by name, before they are weighted."""

    home = ("learning.control.quadrotors",)
    asks = frozenset({"observation_NO", "action_N", "next_observation_NO"})


class TaskTeacherUse(Use):
    """Chooses the task of the next episode by what episodes of other tasks returned."""

    home = ("learning.control.task_teachers", "learning.control.allocations")
    asks = frozenset({"task_KD", "return_K", "low", "high", "rng", "value_of"})


class PriorityUse(Use):
    """Says how likely a kept step is drawn again, from the error of its last update."""

    home = ("learning.control.replay",)
    asks = frozenset({"error_B", "batch"})


class ExperienceUse(Use):
    """Gives steps that a table of values is updated by: kept ones, or those of a model."""

    home = ("learning.control.dyna",)
    asks = frozenset({"kept", "rng", "count", "spaces"})


class HeuristicUse(Use):
    """Gives every step a further reward, which may help or mislead."""

    home = ("learning.control.heuristics",)
    asks = frozenset({"observation_NO", "action_N", "spaces"})


class SegmentDuelUse(Use):
    """Says how likely one piece of an episode is preferred to another."""

    home = ("learning.control.segment_duels",)
    asks = frozenset({"first", "second"})


class SegmentRewardUse(Use):
    """Gives pieces of episodes rewards, in place of those of their steps."""

    home = ("learning.control.segments",)
    asks = frozenset({"segments", "spaces", "rng", "step"})


class RuleUse(Use):
    """Says of each world whether something holds, such as that an expert takes over."""

    home = ("learning.control.rules",)
    asks = frozenset({"observation_NO"})


class TellUse(Use):
    """Says in words what each observation shows, one text for each."""

    home = ("learning.control.guidance",)
    asks = frozenset({"observation_NO"})


class RaterUse(Use):
    """Rates an episode of the data, as a person would who is asked which of two is better."""

    home = ("learning.control.points",)
    asks = frozenset({"observation_KO"})


class ControlLossUse(Use):
    """Builds networks and the loss that trains them."""

    home = (
        *("learning.control.losses", "learning.control.mirror_descent", "learning.control.imitation"),
        *("learning.control.planning", "learning.control.dyna"),
        *("learning.control.decision_transformer", "learning.control.dynamics"),
        *("learning.control.team_losses", "learning.control.random_rollouts", "learning.control.blended_rewards"),
        *("learning.control.hybrid_gradient", "learning.control.advantage_guidance"),
        *("learning.control.balances", "learning.control.dynamics_gap", "learning.control.preferred_context"),
        *("learning.control.marginal_critics", "learning.control.action_programs", "learning.control.boosted_policy"),
        *("learning.control.form_values", "learning.control.conversation_values"),
        "learning.control.json_policy",
    )
    takes = ("networks",)


class ControlTermUse(Use):
    """A term of the loss: a further one, or, under the name of one that the loss has, in its place."""

    home = (
        *("learning.control.terms", "learning.control.imitation"),
        *("learning.control.references", "learning.control.dynamics", "learning.control.advantage_guidance"),
        *("learning.control.balances", "learning.control.dynamics_gap", "learning.control.experience_selection"),
        "learning.control.bisimulation",
    )
    asks = frozenset({"batch", "data_batch", "loss", "actor", "spaces", "step"})
    coef: Number = 1.0
    """Factor of the term; a number schedule is allowed."""


class ControlMetricUse(MetricUse):
    """A number from the returns of a policy's episodes."""

    home = ("learning.control.metrics",)
    asks = frozenset({"score_PN"})
