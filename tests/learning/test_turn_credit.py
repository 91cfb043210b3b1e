"""Credit of single turns, on an episode that is laid out by hand."""

import torch

from learning.algorithm.advantages.turns import by_turn
from learning.batch.batch_layout import forest
from learning.batch.columns import broadcast_to_tokens, of_rewards
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample


def episode(turns, size, given=0):
    made = Sample({"id": "a"}, 0, "policy", [7, 8], list(range(size)), [-1.0] * size, "length", "", given=given)
    made.versions, made.turns, made.scores = [0] * size, turns, {"environment.earned": 9.0}
    made.reward = 9.0
    return made


def test_every_token_has_what_its_own_turn_earned_and_observed_ones_have_no_place():
    """Two whole turns (2 + 3 observed, 1 + 1 observed) and two tokens of a third, behind one that was given."""
    turns = [Turn(2, 3, 0.5, 4.0), Turn(1, 1, -1.0, 10.0)]
    batch = forest([episode(turns, 10, given=1), episode([], 2)])
    earned_T, seconds_T = batch.sampled("earned"), batch.sampled("seconds")
    assert earned_T.tolist() == [0.5, 0.5, -1.0, 0.0, 0.0, 0.0, 0.0]
    assert seconds_T.tolist() == [4.0, 4.0, 10.0, 0.0, 0.0, 0.0, 0.0]
    assert batch.sampled("turn").tolist() == [0, 0, 1, 2, 2, 0, 0]
    column = by_turn(of_rewards(batch), batch, earned_T)
    assert (column.unit, column.values_X.dtype) == ("token", torch.float64)
    assert column.values_X.tolist() == earned_T.tolist()
    assert column.raw_X.tolist() == [9.0] * 7
    assert broadcast_to_tokens(column, batch) is column
