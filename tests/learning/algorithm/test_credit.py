"""Advantages from a critic's values: closed forms, an independent formula, and the two traps of GAE."""

import pytest
import torch

from learning.algorithm.advantages import credit
from learning.algorithm.advantages import normalisation as advantages
from learning.batch.batch import Batch
from learning.batch.batch_layout import single_turn
from learning.batch.columns import Column, of_rewards
from learning.samples.engine_protocol import Generation


def batch(lengths, values, rewards, finishes=None, ends=None):
    """One group of completions with values, rewards and ways to end."""
    finishes = finishes or ["stop"] * len(lengths)
    made = single_turn([[1, 2]], [[Generation([3] * n, [-1.0] * n, f) for n, f in zip(lengths, finishes, strict=True)]])
    made = made.with_paths(
        reward=torch.tensor(rewards, dtype=torch.float64),
        value_end=torch.tensor(ends or [9.0] * len(lengths), dtype=torch.float64),
    )
    return made.with_tokens(value=torch.tensor(values, dtype=torch.float64))


def same(got, want):
    torch.testing.assert_close(got, torch.as_tensor(want, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("finish", "tail", "reward", "want"),
    [
        ("length", "hold", 0.0, [0.25, -0.1, 0.0]),
        ("stop", "hold", 1.0, [0.4, 0.2, 0.6]),
        ("stop", "bootstrap", 1.0, [0.4, 0.2, 0.6]),
        ("length", "terminal", 0.0, [0.15, -0.3, -0.4]),
        ("length", "bootstrap", 0.0, [0.25 + 0.25 * 0.2, -0.1 + 0.5 * 0.2, 0.2]),
    ],
)
def test_gae_in_closed_form(finish, tail, reward, want):
    made = batch([3], [0.2, 0.5, 0.4], [reward], [finish], [0.6])
    same(credit.gae(of_rewards(made), made, made.sampled("value"), lam=0.5, tail=tail).values_X, want)


def direct(values, reward, after, gamma, lam):
    """A_t as the double sum, in plain Python."""
    following = [*values[1:], after]
    rewards = [0.0] * (len(values) - 1) + [reward]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


@pytest.mark.parametrize("tail", ["bootstrap", "hold", "terminal"])
@pytest.mark.parametrize(("lam", "lam_value", "adaptive"), [(0.9, None, None), (0.7, 1.0, None), (0.3, 1.0, 0.5)])
def test_gae_is_the_double_sum_on_ragged_paths(tail, lam, lam_value, adaptive):
    lengths, finishes = [4, 1, 7, 2], ["stop", "length", "length", "stop"]
    generator = torch.Generator().manual_seed(2)
    values, ends = (torch.randn(n, generator=generator, dtype=torch.float64).tolist() for n in (14, 4))
    made = batch(lengths, values, [1.0, 0.0, 0.5, -1.0], finishes, ends)
    options = {"gamma": 0.8, "lam": lam, "lam_value": lam_value, "adaptive": adaptive, "tail": tail}
    column = credit.gae(of_rewards(made), made, made.sampled("value"), **options)
    want, targets = [], []
    parts = torch.tensor(values, dtype=torch.float64).split(lengths)
    for own, end, finish, r in zip(parts, ends, finishes, made.paths["reward"].tolist(), strict=True):
        own = own.tolist()
        after = {"bootstrap": end, "hold": own[-1], "terminal": 0.0}[tail] if finish == "length" else 0.0
        here = lam if adaptive is None else max(0.0, 1 - 1 / (adaptive * len(own)))
        want += direct(own, r, after, 0.8, here)
        returns = direct(own, r, after, 0.8, here if lam_value is None else lam_value)
        targets += [a + v for a, v in zip(returns, own, strict=True)]
    torch.testing.assert_close(column.values_X, torch.tensor(want, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(column.return_X, torch.tensor(targets, dtype=torch.float64), atol=1e-12, rtol=0)


def test_vapo_lambda_grows_with_the_length():
    made = batch([100, 25, 10], [0.5] * 135, [1.0, 1.0, 1.0])
    credits = credit.gae(of_rewards(made), made, made.sampled("value"), adaptive=0.05, lam_value=1.0)
    first = [int((made.path_T == p).nonzero()[0]) for p in range(3)]
    # λ = 1 − 1/(0.05·100) = 0.8, 1 − 1/(0.05·25) = 0.2, and 0 where the formula would be negative.
    want = [0.5 * 0.8**99, 0.5 * 0.2**24, 0.0]
    same(credits.values_X[first], want)
    same(credits.return_X, [1.0] * 135)


def test_extremes_of_lambda():
    made = batch([3, 2], [0.3, -0.2, 0.9, 0.1, 0.4], [1.0, 2.0])
    one = credit.gae(of_rewards(made), made, made.sampled("value"), lam=1.0)
    same(one.values_X, [1 - 0.3, 1 + 0.2, 1 - 0.9, 2 - 0.1, 2 - 0.4])
    zero = credit.gae(of_rewards(made), made, made.sampled("value"), lam=0.0)
    same(zero.values_X, [-0.5, 1.1, 0.1, 0.3, 1.6])
    same(zero.return_X, [-0.2, 0.9, 1.0, 0.4, 2.0])


def test_targets_survive_what_comes_after():
    made = batch([3, 2], [0.3, -0.2, 0.9, 0.1, 0.4], [1.0, 2.0])
    column = credit.gae(of_rewards(made), made, made.sampled("value"), lam=1.0)
    for operation in (advantages.center, advantages.scale):
        column = operation(column, made, by="batch")
    same(column.return_X, [1.0, 1.0, 1.0, 2.0, 2.0])
    assert float(column.values_X.std()) == pytest.approx(1, abs=1e-3)


def test_diff_is_what_a_token_adds():
    made = batch([3, 2], [0.2, 0.5, 0.4, 0.1, 0.7], [1.0, 0.0], ["stop", "length"], [9.0, 0.3])
    column = credit.value_difference(of_rewards(made), made, made.sampled("value"))
    same(column.values_X, [0.3, -0.1, 0.6, 0.6, -0.4])
    same(column.return_X, [1.0, 1.0, 1.0, 0.3, 0.3])
    same(column.values_X[:3].sum(), 1.0 - 0.2)


def turns(observed, values):
    """One path: prompt, two sampled tokens, `observed` tokens from outside, two sampled tokens."""
    sizes, learn = [2, 2, observed, 2], [False, True, False, True]
    flags = torch.tensor([flag for size, flag in zip(sizes, learn, strict=True) for flag in [flag] * size])
    zero = torch.zeros(1, dtype=torch.long)
    rest = {"reward": torch.ones(1).double(), "truncated": zero.bool(), "value_end": torch.zeros(1).double()}
    made = Batch(
        [[1] * n for n in sizes],
        [-1, 0, 1, 2],
        [3],
        {"learn": flags, "owner": torch.zeros(len(flags), dtype=torch.long)},
        {"path": zero, "group": zero, "episode": zero, **rest},
    )
    return made.with_tokens(value=torch.tensor(values, dtype=torch.float64))


def test_trap_13_observations_take_no_time_and_lose_no_value():
    values, want = [0.1, 0.4, 0.2, 0.5], direct([0.1, 0.4, 0.2, 0.5], 1.0, 0.0, 0.9, 0.8)
    for observed in (0, 1, 6):
        made = turns(observed, values)
        column = credit.gae(of_rewards(made), made, made.sampled("value"), gamma=0.9, lam=0.8)
        same(column.values_X, want)
        same(column.return_X, [a + v for a, v in zip(want, values, strict=True)])
        same(credit.value_difference(of_rewards(made), made, made.sampled("value")).values_X, [0.3, -0.2, 0.3, 0.5])


def test_trap_14_a_cut_path_is_not_an_end():
    # Reward 1 at every step for ever at γ = 0.9: V = 10 in every state, also in the one after the cut.
    made = batch([5], [10.0] * 5, [0.0], ["length"], [10.0])
    rewards = Column(torch.ones(5).double(), torch.ones(5).double(), made.path_T, "token")
    for lam in (0.0, 0.5, 1.0):
        exact = credit.gae(rewards, made, made.sampled("value"), gamma=0.9, lam=lam)
        same(exact.values_X, [0.0] * 5)
        same(exact.return_X, [10.0] * 5)
        ended = credit.gae(rewards, made, made.sampled("value"), gamma=0.9, lam=lam, tail="terminal")
        assert float(ended.values_X[-1]) == pytest.approx(1 - 10)


def test_order_of_paths_does_not_matter():
    made = batch([3, 1, 4], [0.1 * i for i in range(8)], [1.0, 0.0, 0.5], ["stop", "length", "length"], [0.2, 0.4, 0.6])
    want = credit.gae(of_rewards(made), made, made.sampled("value")).values_X
    turned = made.take([2, 0, 1])
    got = credit.gae(of_rewards(turned), turned, turned.sampled("value")).values_X
    for new, old in enumerate([2, 0, 1]):
        same(got[turned.path_T == new], want[made.path_T == old])
