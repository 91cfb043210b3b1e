"""Roles of an episode that several speakers share, and the policies that play them, in an rl stage."""

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


class TeamPolicy(Schema):
    """A further policy of the stage. It is trained if a role with `trainable: true` uses it."""

    model: PolicyRef | None = None
    """Its initial weights; null: those of the stage's `model`."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Its learning rate; null: the stage's. The stage sets everything else."""
    sync_steps: int | None = Field(default=None, ge=1)
    """Only if it is not trained: iterations between copies of the stage's `model` into it, so that it is a past version
    of that; null: it never changes."""


class RoleSpec(Schema):
    """A part in the episodes of an rl stage: who speaks, what they are shown, and whether they learn from it."""

    policy: str = MAIN
    """The policy that speaks: `model`, which is the stage's own, or one of `policies`. Roles may share a policy."""
    script: ScriptUse | None = None
    """Rules that speak instead of a policy; null: the policy."""
    trainable: bool = True
    """Whether its policy is trained on what it says in this role."""
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
    """Sampling temperature, only for a role that is not trained; null: the stage's."""
