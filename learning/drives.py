"""How asks become trials: all at once, in windows, more than needed."""

from learning.rollout import Sampler
from learning.trials import Ask, Trial


def whole(asks: list[Ask], sampler: Sampler) -> list[Trial]:
    """Every completion from its first token to its last, in this iteration."""
    return sampler.sample(asks)
