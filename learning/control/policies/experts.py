"""Experts: trained policies that act, or are asked for their actions while another policy learns."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from learning.control.policies.playing import Remembering
from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.stepping.spaces import Spaces
from learning.lookup import Inner
from schemas.control import ActingUse
from schemas.errors import StepError
from schemas.references import ControlPolicyRef

if TYPE_CHECKING:
    ActingFunction = Inner
else:
    ActingFunction = ActingUse
"""Option of a slot's function: a function that acts, which gets it bound."""


def trained(observation_NO: np.ndarray, spaces: Spaces, *, model: ControlPolicyRef) -> np.ndarray:
    """Act as a trained policy does without exploration; N observations of O numbers."""
    policy = _load(Path(model))
    spaces.require(policy.spaces, "model")
    if isinstance(policy.actor, Remembering):
        raise StepError("model: a policy that remembers its episode cannot be asked for single actions; use another")
    return policy.act(observation_NO, explore=False)


@lru_cache(maxsize=4)
def _load(folder: Path) -> ControlPolicy:
    return load_control_policy(folder)
