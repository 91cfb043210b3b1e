"""Operations of the advantage pipeline on the turns of an episode.

Shapes: P paths, T sampled tokens.
"""

from dataclasses import replace

from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import Column, broadcast_to_tokens


def by_turn(column: Column, batch: Batch, earned_T: Tensor) -> Column:
    """Replace the reward of the episode by that of the token's own turn.

    An unfinished turn has reward 0. The operations after it in the list work on tokens.
    """
    return replace(broadcast_to_tokens(column, batch), values_X=earned_T.double())
