"""kind: collect — steps of a policy, a rule or chance in a world."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.control import ActingUse, ExplorationUse, WorldUse
from schemas.references import ControlPolicyRef
from schemas.stages.base import BaseStage


class Collect(BaseStage):
    """Act in an environment of Gymnasium and keep every step, for training on them."""

    shares_tokens: ClassVar = False

    kind: Literal["collect"]
    env: WorldUse
    """Environment: an id of Gymnasium, as `Pendulum-v1`, or a function that returns one."""
    model: ControlPolicyRef | None = None
    """Policy that acts; or give `policy`."""
    policy: ActingUse | None = None
    """Acts without a network, as `random`; or give `model`."""
    explore: bool = True
    """Whether a `model` draws its actions; false: it takes the best or likeliest ones."""
    exploration: ExplorationUse | None = None
    """Changes the actions, such as noise; null: none."""
    environment_steps: int | None = Field(default=None, ge=1)
    """Number of steps, of all worlds together; the last episode of each may be cut off. Or give `episodes`."""
    episodes: int | None = Field(default=None, ge=1)
    """Number of whole episodes."""
    num_envs: int = Field(default=1, ge=1)
    """Number of worlds that are acted in at a time."""

    @model_validator(mode="after")
    def require_one_of_each(self) -> Self:
        """Require one source of actions and one length."""
        if (self.model is None) == (self.policy is None):
            raise ValueError("give `model`, a trained policy, or `policy`, such as `random`")
        if (self.environment_steps is None) == (self.episodes is None):
            raise ValueError("give `environment_steps` or `episodes`")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the transitions."""
        return {"transitions": "transitions"}
