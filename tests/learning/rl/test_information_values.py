"""Shapley values of turns: games with known values, and sets of turns against forward passes of their texts."""

from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learning.algorithm.advantages.turns import information_shares
from learning.batch.batch_layout import forest
from learning.batch.columns import of_rewards
from learning.data.shapley import compute_shapley
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE
from learning.rl.information_values import MAX_TURNS, add_information_values
from learning.samples.engine_protocol import Turn
from schemas.errors import StepError
from tests.learning.rl.test_answer_gains import SAMPLES, chance, sample, stage


def value_of(game, turns):
    """Return the values of a game by mask."""
    return [game({i for i in range(turns) if mask >> i & 1}) for mask in range(1 << turns)]


@pytest.mark.parametrize(
    ("game", "expected"),
    [
        (lambda s: sum([0.5, -1.0, 2.0][i] for i in s), [0.5, -1.0, 2.0]),  # additive
        (lambda s: float(0 in s or 1 in s), [0.5, 0.5, 0.0]),  # two that say the same, one that says nothing
        (lambda s: float({0, 2} <= s), [0.5, 0.0, 0.5]),  # one is worth nothing without the other
        (lambda s: float(2 in s and (0 in s or 1 in s)), [1 / 6, 1 / 6, 2 / 3]),  # the glove game
    ],
)
def test_games_with_known_values(game, expected):
    assert compute_shapley(value_of(game, 3), 3) == pytest.approx(expected)


@pytest.mark.parametrize("turns", [1, 2, 4, 5])
def test_a_value_is_the_mean_gain_over_all_orders(turns):
    values = np.random.default_rng(turns).random(1 << turns).tolist()
    gains = np.zeros(turns)
    orders = list(permutations(range(turns)))
    for order in orders:
        mask = 0
        for member in order:
            gains[member] += values[mask | 1 << member] - values[mask]
            mask |= 1 << member
    assert compute_shapley(values, turns) == pytest.approx((gains / len(orders)).tolist())
    assert sum(compute_shapley(values, turns)) == pytest.approx(values[-1] - values[0])


def values_of(policy, samples, **options):
    batch = forest(samples)
    trained = Trained(policy.model, ALONE)
    return add_information_values(batch, samples, trained, stage(**options), policy.tokenizer), batch


@pytest.mark.parametrize("options", [{}, {"prefix": "So it is "}, {"max_tokens": 16}])
def test_the_sets_are_the_prompt_and_their_turns(tiny_policy, options):
    """The first sample has two answered turns and one that nothing follows, the second one, the third none."""
    made, _ = values_of(tiny_policy, SAMPLES, **options)
    ids, prompt, prefix = SAMPLES[0].completion_ids, [5, 6, 7], options.get("prefix", "")
    first, second = ids[:5], ids[5:8]
    v = [chance(tiny_policy, [*prompt, *turns], prefix, "river") for turns in ([], first, second, [*first, *second])]
    shares = [(v[1] - v[0] + v[3] - v[2]) / 2, (v[2] - v[0] + v[3] - v[1]) / 2]
    alone = chance(tiny_policy, [*prompt, *SAMPLES[1].completion_ids[:5]], prefix, "river") - v[0]
    expected = [*[shares[0]] * 3, *[shares[1]] * 2, 0.0, *[alone] * 2, 0.0, 0.0, 0.0]
    assert made.sampled("shapley").tolist() == pytest.approx(expected, abs=1e-6)
    assert len({round(share, 9) for share in [*shares, alone, 0.0]}) == 4


def test_values_are_added_at_the_ends_of_turns(tiny_policy):
    made, batch = values_of(tiny_policy, SAMPLES)
    value_T = made.sampled("shapley")
    column = information_shares(of_rewards(batch), batch, value_T, batch.sampled("turn"), weight=2.0)
    ends = [2, 4, 5, 7, 8, 10]
    expected = [2 * float(value_T[i]) if i in ends else 0.0 for i in range(11)]
    assert column.values_X.tolist() == pytest.approx(expected)  # rewards are 0
    rewarded = replace(of_rewards(batch), values_X=torch.ones(3, dtype=torch.float64))
    shifted = information_shares(rewarded, batch, value_T, batch.sampled("turn"), weight=0.0)
    assert shifted.values_X.nonzero()[:, 0].tolist() == [5, 8, 10]


@pytest.mark.parametrize(
    ("ids", "turns", "answer", "message"),
    [
        ([10, 20, 11], [Turn(1, 1)], None, "has no answer"),
        ([10, 40, 41, 11], [Turn(1, 2, rebuilt=True)], "a", "remove `env.context`"),
        ([10, 20] * 9 + [11], [Turn(1, 1)] * 9, "a", f"max_turns` of the environment to at most {MAX_TURNS + 1}"),
    ],
)
def test_episodes_without_values_are_refused(tiny_policy, ids, turns, answer, message):
    with pytest.raises(StepError, match=message):
        values_of(tiny_policy, [sample(0, [5], ids, turns, answer=answer)])


def test_completions_without_answered_turns_cost_no_pass(tiny_policy):
    trained = SimpleNamespace(model=None, each=None)
    made = add_information_values(forest(SAMPLES[2:]), SAMPLES[2:], trained, stage(), tiny_policy.tokenizer)
    assert torch.equal(made.sampled("shapley"), torch.zeros(2, dtype=torch.float64))
