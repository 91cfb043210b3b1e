"""Advantages of single turns of an episode.

Shapes: P paths, T sampled tokens.
"""

from dataclasses import replace

from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import Column, broadcast_to_tokens


def by_turn(column: Column, batch: Batch, earned_T: Tensor) -> Column:
    """What the token's own turn earned, in the place of what the whole episode did: every action by itself.

    A turn that has not ended has earned nothing. What follows in the list works on tokens.
    """
    return replace(broadcast_to_tokens(column, batch), values_X=earned_T.double())
