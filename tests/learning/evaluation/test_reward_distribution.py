"""The distribution of rewards over a model's completions, by numbers that can be counted by hand."""

from learning.evaluation.reward_distribution import Bin, describe_rewards, make_bins


def test_shares_are_of_problems_and_of_completions():
    made = describe_rewards([[1.0, 1.0], [0.0, 1.0], [None, 0.0], [None, None]], cut=2)
    assert (made.problems, made.completions, made.mean) == (4, 8, 0.6)
    assert made.std == 0.3**0.5  # three ones and two zeros: (3 · 0.16 + 2 · 0.36) / 4
    assert made.equal_groups == 0.5  # of the two problems with two scores
    assert (made.unscorable, made.cut) == (3 / 8, 1 / 4)
    assert made.bins == (Bin(0.0, 0.0, 2), Bin(1.0, 1.0, 3))


def test_without_scores_nothing_is_made_up():
    made = describe_rewards([[None, None]], cut=0)
    assert (made.mean, made.std, made.equal_groups, made.unscorable, made.bins) == (None, None, None, 1.0, ())


def test_many_values_make_ten_bins_that_hold_every_score():
    bins = make_bins([float(i) for i in range(101)])
    assert [one.count for one in bins] == [10] * 9 + [11]
    assert (bins[0].low, bins[-1].high) == (0.0, 100.0)
