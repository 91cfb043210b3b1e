"""One value from those of several heads.

Shapes: T sampled tokens, H heads.
"""

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor


def mean(value_TH: Tensor) -> Tensor:
    """The mean of the heads."""
    return value_TH.mean(-1)


def least(value_TH: Tensor) -> Tensor:
    """The lowest of the heads."""
    return value_TH.amin(-1)


def soft_min(value_TH: Tensor, *, alpha: Annotated[float, Field(gt=0)] = 1.0) -> Tensor:
    """−α·ln of the mean of exp(−V/α): between the lowest and the mean, the lowest as α → 0 (SAFE's double critic)."""
    return -alpha * ((-value_TH / alpha).logsumexp(-1) - math.log(value_TH.shape[-1]))
