"""Roles of an episode that several speakers share, and the policies that play them, in rl stages and evaluations."""

import operator
from collections.abc import Collection, Mapping
from typing import Annotated

from pydantic import Field

from schemas.base import Schema
from schemas.references import PolicyRef
from schemas.use import EnvUse, Use

MAIN = "model"
"""Name of the stage's own policy among those that play roles."""
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class TurnOrderUse(Use):
    """Decides who speaks next in an episode of several roles, what that role sees, and what roles have earned."""

    home = ("learning.collection.turn_orders", "learning.toy_tasks")
    asks = frozenset({"roles", "turns", "row", "rng"})
    max_turns: int = Field(default=16, ge=1)
    """Most turns of all roles together in an episode; it then ends as truncated."""


class ScriptUse(Use):
    """Speaks for a role by rules instead of a policy, for example as a simulated user or a fixed opponent."""

    home = ("learning.collection.scripts", "learning.toy_tasks")
    asks = frozenset({"role", "turns", "message", "row", "rng"})


class LeagueUse(Use):
    """Weighs the past versions of a policy, one of which plays in each iteration."""

    home = ("learning.collection.leagues",)
    asks = frozenset({"age_K", "won_K", "played_K"})


class LeagueSpec(Schema):
    """Past versions of the stage's `model`: its initial weights, and one more every `save_steps` iterations."""

    save_steps: int = Field(default=10, ge=1)
    """Iterations between versions that are kept."""
    max_versions: int | None = Field(default=None, ge=1)
    """Most versions that may play, the newest ones; null: all."""
    weights: LeagueUse = LeagueUse(use="uniform")
    """How often each version plays: in every iteration one is drawn with these weights, for all its episodes."""


class TeamPolicy(Schema):
    """A further policy of the stage. It is trained if a role with `trainable: true` uses it."""

    model: PolicyRef | None = None
    """Its initial weights; null: those of the stage's `model`."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Its learning rate; null: the stage's. The stage sets everything else."""
    sync_steps: int | None = Field(default=None, ge=1)
    """Only if it is not trained: iterations between copies of the stage's `model` into it, so that it is a past version
    of that; null: it never changes."""
    league: LeagueSpec | None = Field(default=None, exclude_if=operator.not_)
    """Only if it is not trained: it plays as one of the past versions of the stage's `model`, another one in every
    iteration; null: one version."""


class EvaluatedPolicy(Schema):
    """A further policy of an evaluated team: the same one for all teams, or one for each."""

    model: PolicyRef | None = None
    """The policy in all teams that `models` does not name; null: every team has its own."""
    models: dict[str, PolicyRef] = {}
    """The policies of single teams, by their names in `models` and `against` of the stage."""


class RoleSpec(Schema):
    """A part in the episodes of a stage: who speaks, what they are shown, and whether they learn from it."""

    policy: str = MAIN
    """The policy that speaks: `model`, which is the stage's own, or one of `policies`. Roles may share a policy."""
    script: ScriptUse | None = None
    """Rules that speak instead of a policy; null: the policy."""
    trainable: bool = True
    """Whether its policy is trained on what it says in this role; an evaluation trains nothing."""
    system: str | None = None
    """System message of the role, in place of that of the problem; null: that of the problem, if it has one."""
    prompt: str = "{question}\n{message}"
    """Text of the first message that the role sees: `{question}` is the last message of the problem, `{message}` what
    the turn order shows it. Line breaks at both ends are removed."""
    env: EnvUse | None = None
    """Environment that answers the role before its turn ends, for example tools; its last message is its turn."""
    max_completion_length: int | None = Field(default=None, ge=1)
    """Most tokens of one of its turns, with the answers of its `env`; null: the stage's."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature, in an rl stage only for a role that is not trained; null: the stage's."""


def check_players(roles: Mapping[str, RoleSpec], policies: Collection[str], *, has_order: bool) -> None:
    """Raise ValueError for roles, further policies and a turn order that do not fit together."""
    if bool(roles) != has_order or (policies and not roles):
        raise ValueError("`roles` and `turn_order` belong together, and `policies` need `roles` that they play")
    for role, spec in roles.items():
        _check_role(role, spec, policies)
    for name in policies:
        if name not in {spec.policy for spec in roles.values() if spec.script is None}:
            raise ValueError(f"policies: no role is played by `{name}`; remove it, or name it in a role")


def _check_role(role: str, spec: RoleSpec, policies: Collection[str]) -> None:
    """Raise ValueError for keys of a role that contradict each other."""
    if spec.policy not in (MAIN, *policies):
        names = ", ".join((MAIN, *policies))
        raise ValueError(f"roles: `{role}` is played by `{spec.policy}`, which is no policy; policies: {names}")
    if spec.script is not None:
        keys = ("policy", "system", "prompt", "env", "max_completion_length", "temperature")
        given = [key for key in keys if getattr(spec, key) != RoleSpec.model_fields[key].default]
        if given:
            raise ValueError(f"roles: `{role}` has a `script`, for which `{given[0]}` has no effect; remove one")
    if spec.env is not None and spec.env.context is not None:
        raise ValueError(f"roles: `{role}`: `env.context` is not possible; the turn order can replace contexts")
