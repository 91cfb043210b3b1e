"""kind: collect — steps of a policy, a rule or chance in a world."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.control import ActingUse, ExplorationUse, WorldUse
from schemas.references import ControlPolicyRef, DirectoryRef
from schemas.stages.base import BaseStage


class Collect(BaseStage):
    """Act in an environment of Gymnasium, or read what was recorded in one, and keep every step for training."""

    shares_tokens: ClassVar = False

    kind: Literal["collect"]
    env: WorldUse
    """Environment: an id of Gymnasium, as `Pendulum-v1`, or a function that returns one."""
    model: ControlPolicyRef | None = None
    """Policy that acts; or give `policy` or `dataset`."""
    policy: ActingUse | None = None
    """Acts without a network, as `random`; or give `model` or `dataset`."""
    dataset: DirectoryRef | None = None
    """Steps that were recorded elsewhere: a data set of Minari (`path:./door/human-v2`), or tables with the columns
    `episode`, `observation`, `action`, `reward` and, where they are true, `terminated` and `truncated`."""
    explore: bool = True
    """Whether a `model` draws its actions; false: it takes the best or likeliest ones."""
    exploration: ExplorationUse | None = None
    """Changes the actions, such as noise; null: none."""
    environment_steps: int | None = Field(default=None, ge=1)
    """Number of steps, of all worlds together; the last episode of each may be cut off. Or give `episodes`, or neither
    for the whole `dataset`."""
    episodes: int | None = Field(default=None, ge=1)
    """Number of whole episodes."""
    num_envs: int = Field(default=1, ge=1)
    """Number of worlds that are acted in at a time."""

    @model_validator(mode="after")
    def require_one_of_each(self) -> Self:
        """Require one source of actions and one length."""
        if sum(source is not None for source in (self.model, self.policy, self.dataset)) != 1:
            raise ValueError("give one of `model`, a trained policy, `policy`, such as `random`, and `dataset`")
        if self.dataset is not None:
            if self.environment_steps is not None and self.episodes is not None:
                raise ValueError("give `environment_steps` or `episodes`, or neither for the whole `dataset`")
            given = {"explore": not self.explore, "exploration": self.exploration, "num_envs": self.num_envs > 1}
            if changed := [name for name, is_given in given.items() if is_given]:
                raise ValueError(f"`{changed[0]}` changes how a policy acts, and `dataset` was recorded; remove it")
        elif (self.environment_steps is None) == (self.episodes is None):
            raise ValueError("give `environment_steps` or `episodes`")
        return self

    @property
    def task_module(self) -> str:
        """Module of `tasks` that runs the stage."""
        return self.kind if self.dataset is None else "recorded_steps"

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the transitions."""
        return {"transitions": "transitions"}
