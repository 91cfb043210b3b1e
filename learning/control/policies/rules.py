"""Rules on observations, by which experts take over. Shapes: N worlds, O numbers of an observation."""

from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from learning.lookup import Inner
from schemas.control import RuleUse

if TYPE_CHECKING:
    RuleFunction = Inner
else:
    RuleFunction = RuleUse
"""Option of a slot's function: a rule on observations, which it gets bound."""


def below(observation_NO: np.ndarray, *, number: Annotated[int, Field(ge=0)] = 0, limit: float = 0.0) -> np.ndarray:
    """Hold where one number of the observation is below a limit; number 0 of the pendulum is its height."""
    return observation_NO[:, number] < limit


def beyond(observation_NO: np.ndarray, *, limit: Annotated[float, Field(ge=0)]) -> np.ndarray:
    """Hold where the observation is farther than a limit from 0."""
    return np.linalg.norm(observation_NO, axis=1) > limit
