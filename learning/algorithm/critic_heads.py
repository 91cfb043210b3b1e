"""Ways to combine the values of a critic's heads into one.

Shapes: T sampled tokens, H heads.
"""

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor


def mean(value_TH: Tensor) -> Tensor:
    """Mean of the heads."""
    return value_TH.mean(-1)


def least(value_TH: Tensor) -> Tensor:
    """Lowest of the heads."""
    return value_TH.amin(-1)


def soft_min(value_TH: Tensor, *, alpha: Annotated[float, Field(gt=0)] = 1.0) -> Tensor:
    """Soft minimum of the heads, −α·ln mean exp(−V/α): the lowest as α → 0 (double critic of SAFE)."""
    return -alpha * ((-value_TH / alpha).logsumexp(-1) - math.log(value_TH.shape[-1]))
