"""Metrics of an evaluation: from which samples were correct to one value per problem.

Shapes: P problems, N samples of each. `correct_PN` is 1 or 0, NaN where a sample could not be scored; a problem's value
is NaN when nothing can be said about it.
"""

from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.special import comb


def accuracy(correct_PN: np.ndarray) -> np.ndarray:
    """Share of correct samples."""
    counted_P = (~np.isnan(correct_PN)).sum(1)
    return np.where(counted_P > 0, np.nansum(correct_PN, 1) / np.maximum(counted_P, 1), np.nan)


def pass_at(correct_PN: np.ndarray, *, k: Annotated[int, Field(ge=1)]) -> np.ndarray:
    """Probability that one of k samples is correct, without bias: 1 − C(n−c, k) / C(n, k) (Chen et al. 2021, eq. 1).

    NaN for problems with fewer than k samples.
    """
    n_P = (~np.isnan(correct_PN)).sum(1)
    wrong_P = n_P - np.nansum(correct_PN, 1)
    return np.where(n_P >= k, 1 - comb(wrong_P, k) / np.maximum(comb(n_P, k), 1), np.nan)
