"""Shapley values: what each member of a set contributes to a value that belongs to all of them."""

from collections.abc import Sequence
from math import exp, factorial


def compute_shapley(values: Sequence[float], members: int) -> list[float]:
    """Return the Shapley value of each of `members`; `values[mask]` is that of the set with the bits of `mask`.

    φ_i = Σ over sets S without i of |S|!·(n − |S| − 1)!/n! · (v(S ∪ {i}) − v(S)).
    """
    weights = [factorial(size) * factorial(members - size - 1) / factorial(members) for size in range(members)]
    return [
        sum(
            weights[mask.bit_count()] * (values[mask | 1 << member] - values[mask])
            for mask in range(1 << members)
            if not mask >> member & 1
        )
        for member in range(members)
    ]


def weigh_softly(values: Sequence[float], temperature: float = 2.0) -> list[float]:
    """Return the softmax of values / temperature: weights above 0 that add up to 1."""
    scaled = [exp((value - max(values)) / temperature) for value in values]
    return [each / sum(scaled) for each in scaled]
