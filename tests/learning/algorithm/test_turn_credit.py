"""Credit of single turns, on an episode that is laid out by hand."""

from dataclasses import replace

import pytest
import torch

from learning.algorithm.advantage_shaping import overwrite_failed
from learning.algorithm.advantages.normalisation import center, scale
from learning.algorithm.advantages.roles import gae_across_roles
from learning.algorithm.advantages.turns import (
    anchor_states,
    by_kind,
    by_turn,
    contributions,
    discounted_outcome,
    gated_turns,
    information_gain,
    shared_tokens,
    turn_gae,
    turn_returns,
)
from learning.batch.batch_layout import forest
from learning.batch.columns import broadcast_to_tokens, find_turn_ends, of_rewards
from learning.rl.team import locate_turns, role_columns
from learning.samples.conversation import RoleSample
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample
from schemas.errors import StepError


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


def visits(group, states, reward, earned=None):
    """Return a sample whose turns of one token, each before an observed one, were taken in these states."""
    size = 2 * len(states)
    paid = earned or [0.0] * len(states)
    turns = [Turn(1, 1, one, state=state) for one, state in zip(paid, states, strict=True)]
    made = Sample({"id": str(group)}, group, "policy", [7], list(range(size)), [-1.0] * size, "stop", "")
    made.versions, made.turns, made.scores, made.reward = [0] * size, turns, {"r": reward}, reward
    return made


def credit(samples, **options):
    batch = forest(samples)
    columns = {name: batch.sampled(name) for name in ("state", "turn", "earned")}
    zeros = replace(of_rewards(batch), values_X=torch.zeros(batch.num_paths, dtype=torch.float64))
    column = anchor_states(zeros, batch, columns["state"], columns["turn"], columns["earned"], **options)
    return column.values_X


def test_turns_in_equal_states_of_a_group_are_compared_by_their_discounted_returns():
    """State 5 at t=0 and t=2 of a success in three steps, and at t=0 of a failure: returns .81, 1 and 0."""
    values_T = credit([visits(0, [5, 6, 5], 1.0), visits(0, [5, 8], 0.0)], gamma=0.9)
    mean = (0.81 + 1.0 + 0.0) / 3
    assert values_T.tolist() == pytest.approx([0.81 - mean, 0.0, 1.0 - mean, -mean, 0.0])
    assert [round(v, 3) for v in values_T.tolist()] == [0.207, 0.0, 0.397, -0.603, 0.0]
    spread = torch.tensor([0.81, 1.0, 0.0], dtype=torch.float64).std() + 1e-6
    scaled_T = credit([visits(0, [5, 6, 5], 1.0), visits(0, [5, 8], 0.0)], gamma=0.9, scale="std")
    assert scaled_T.tolist() == pytest.approx((values_T / spread).tolist())


def test_equal_states_of_different_groups_are_not_compared():
    values_T = credit([visits(0, [5], 1.0), visits(0, [6], 0.0), visits(1, [5], 0.0), visits(1, [6], 1.0)])
    assert values_T.tolist() == [0.0] * 4


def test_rewards_of_turns_count_from_their_turn_on():
    samples = [visits(0, [5, 6], 9.0, [0.5, 2.0]), visits(0, [5, 6], 9.0, [0.0, -1.0])]
    values_T = credit(samples, gamma=0.5, rewards="turns")
    first, second = [1.5, 2.0], [-0.5, -1.0]
    means = [(one + other) / 2 for one, other in zip(first, second, strict=True)]
    expected = [one - mean for of in (first, second) for one, mean in zip(of, means, strict=True)]
    assert values_T.tolist() == pytest.approx(expected)


def test_a_memory_belongs_to_the_step_after_it_and_an_open_turn_to_none():
    """Tokens: action, memory, action in a state seen twice, then a turn that the environment did not answer."""
    one, other = visits(0, [5, 0, 6], 1.0), visits(0, [5, 0, 6], 0.0)
    for sample in (one, other):
        sample.completion_ids, sample.logprobs, sample.versions = list(range(8)), [-1.0] * 8, [0] * 8
    values_T = credit([one, other], gamma=0.5)
    assert values_T.tolist() == pytest.approx([0.25, 0.5, 0.5, 0.0, 0.0, -0.25, -0.5, -0.5, 0.0, 0.0])


def test_completions_without_turns_have_no_step_advantage_and_a_weight_of_zero_changes_nothing():
    batch = forest([episode([], 3), episode([], 2)])
    columns = [batch.sampled(name) for name in ("state", "turn", "earned")]
    assert anchor_states(of_rewards(batch), batch, *columns).values_X.tolist() == [9.0] * 5
    samples = [visits(0, [5, 6, 5], 1.0), visits(0, [5, 8], 0.3)]
    batch = forest(samples)
    column = scale(center(of_rewards(batch), batch), batch)
    columns = [batch.sampled(name) for name in ("state", "turn", "earned")]
    without = broadcast_to_tokens(column, batch).values_X
    assert torch.equal(anchor_states(column, batch, *columns, weight=0.0).values_X, without)


def kinds(group, kinds, earned):
    """Return a sample whose turns of one token, each before an observed one, had these kinds and earned this."""
    made = visits(group, [1] * len(kinds), 0.0)
    made.turns = [Turn(1, 1, paid, kind=kind) for kind, paid in zip(kinds, earned, strict=True)]
    return made


def test_what_turns_of_a_kind_earned_together_is_compared_with_the_same_kind_of_other_episodes():
    """Kind 3 earned 0.5 + 0.25, 0.25 and, in another group, 4; kind 4 earned 1 twice; no kind gets nothing."""
    samples = [
        kinds(0, [3, 3, 4], [0.5, 0.25, 1.0]),
        kinds(0, [3, 4, 0], [0.25, 1.0, 9.0]),
        kinds(1, [3], [4.0]),
        kinds(0, [5, 0], [7.0, 0.0]),
    ]
    batch = forest(samples)
    columns = [batch.sampled(name) for name in ("earned", "kind", "turn")]
    plain = by_kind(of_rewards(batch), batch, *columns, scale="none")
    assert plain.values_X.tolist() == pytest.approx([0.25, 0.25, 0.0, -0.25, 0.0, 0.0, 0.0, 0.0, 0.0])
    scaled = by_kind(of_rewards(batch), batch, *columns, epsilon=0.0)
    assert scaled.values_X.tolist() == pytest.approx([1.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    every = by_kind(of_rewards(batch), batch, *columns, scale="none", by="batch").values_X
    mean = (0.75 + 0.25 + 4.0) / 3
    assert [every[0].item(), every[3].item(), every[6].item()] == pytest.approx([0.75 - mean, 0.25 - mean, 4.0 - mean])


def gains(samples, gain, **options):
    batch = forest(samples)
    gain_T = torch.tensor(gain, dtype=torch.float64)
    return information_gain(of_rewards(batch), batch, gain_T, batch.sampled("turn"), **options)


def test_gains_and_outcomes_of_a_group_are_normalised_together_and_summed_over_later_turns():
    """Two episodes: a gain of 0.3 before a reward of 1, one of -0.1 before 0; population deviation."""
    samples = [visits(0, [5, 6], 1.0), visits(0, [5, 7], 0.0)]
    rewards = torch.tensor([0.3, 1.0, -0.1, 0.0], dtype=torch.float64)
    normal = (rewards - 0.3) / rewards.std(correction=0)
    assert [round(v, 3) for v in normal.tolist()] == [0.0, 1.627, -0.930, -0.697]
    column = gains(samples, [0.3, 0.0, -0.1, 0.0], epsilon=0.0)
    assert [round(v, 3) for v in column.values_X.tolist()] == [1.627, 1.627, -1.627, -0.697]
    assert (column.unit, column.raw_X.tolist()) == ("token", [1.0, 1.0, 0.0, 0.0])
    a, b, c, d = normal.tolist()
    half = gains(samples, [0.3, 0.0, -0.1, 0.0], epsilon=0.0, gamma=0.5)
    assert half.values_X.tolist() == pytest.approx([a + b / 2, b, c + d / 2, d])


def test_groups_are_normalised_apart_and_equal_rewards_give_nothing():
    samples = [visits(0, [5, 6], 0.0), visits(1, [5, 6], 0.0)]
    assert gains(samples, [0.0, 0.0, 0.4, 0.0]).values_X.tolist() == pytest.approx([0, 0, 0, -1], abs=1e-4)


def test_all_tokens_of_a_turn_have_its_advantage_and_single_turns_their_reward():
    turns = [Turn(2, 1, state=5), Turn(1, 1, state=6)]
    long, short = episode(turns, 6), episode([], 2)
    long.reward, short.reward = 1.0, 0.0
    values_T = gains([long, short], [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]).values_X.tolist()
    assert values_T[0] == values_T[1]
    assert values_T[-1] == values_T[-2] < 0


def test_contributions_stand_at_the_last_tokens_of_turns_with_what_could_be_carried_out():
    """Contributions of .2, .3, .1, of which the second could not be carried out."""
    turns = [Turn(2, 1, ok=True), Turn(1, 1, ok=False), Turn(3, 0, ok=True)]
    made = episode(turns, 8)
    batch = forest([made])
    ends_T = find_turn_ends(batch.path_T, batch.sampled("turn"))
    assert ends_T.tolist() == [False, True, True, False, False, True]
    value_T = torch.tensor([0.0, 0.2, 0.3, 0.0, 0.0, 0.1], dtype=torch.float64)
    supplies = ({"progress": value_T}, batch.sampled("turn"), batch.sampled("ok"))
    column = contributions(of_rewards(batch), batch, *supplies, of="progress")
    assert column.values_X.tolist() == pytest.approx([0, 0.7, 0.3, 0, 0, 0.6])
    both = contributions(of_rewards(batch), batch, *supplies, of="progress", grounding=0.0, outcome=1.0)
    assert both.values_X.tolist() == pytest.approx([0, 0.2, 0.3, 0, 0, 9.1])
    assert (column.unit, column.raw_X.tolist()) == ("token", [9.0] * 6)


def test_an_outcome_is_discounted_for_the_turns_after_a_turn():
    """γ = 0.5 and three turns: 0.25, 0.5, 1; a reward of 0 stays 0."""
    batch = forest([visits(0, [5, 6, 7], 1.0), visits(0, [5, 6, 7], 0.0)])
    column = discounted_outcome(of_rewards(batch), batch, batch.sampled("turn"), gamma=0.5, normalise="none")
    assert column.values_X.tolist() == [0.25, 0.5, 1.0, 0.0, 0.0, 0.0]
    assert column.raw_X.tolist() == [1.0] * 3 + [0.0] * 3
    less = replace(of_rewards(batch), values_X=of_rewards(batch).values_X - 0.5)
    column = discounted_outcome(less, batch, batch.sampled("turn"), gamma=0.5, normalise="none")
    assert column.values_X.tolist() == [0.125, 0.25, 0.5, -0.125, -0.25, -0.5], "what is left of the reward counts"
    with pytest.raises(StepError, match="advantage discounted_outcome: the values are one per token"):
        discounted_outcome(column, batch, batch.sampled("turn"))
    empty = forest([visits(0, [], 1.0)])
    assert not len(discounted_outcome(of_rewards(empty), empty, empty.sampled("turn")).values_X)


def test_without_branches_no_token_is_shared():
    batch = forest([visits(0, [5, 6], 1.0), visits(0, [5, 6], 0.0)])
    assert shared_tokens(of_rewards(batch), batch, batch.sampled("origin")).values_X.tolist() == [1.0, 1.0, 0.0, 0.0]


def returns_of(samples, **options):
    batch = forest(samples)
    return turn_returns(of_rewards(batch), batch, batch.sampled("earned"), batch.sampled("turn"), **options)


def test_returns_of_turns_are_summed_up_and_normalised_in_either_order():
    samples = [visits(0, [1, 2], 1.0, [0.0, 1.0]), visits(0, [1, 2], 0.0, [0.0, 0.0])]
    assert returns_of(samples).values_X.tolist() == pytest.approx([1, 1, -1, -1], abs=1e-5)
    later = returns_of(samples, normalise="rewards").values_X.tolist()
    assert later == pytest.approx([2 / 3**0.5, 3**0.5, -2 / 3**0.5, -1 / 3**0.5], abs=1e-5)
    plain = returns_of(samples, normalise="none", gamma=0.5)
    assert (plain.values_X.tolist(), plain.unit) == ([0.5, 1.0, 0.0, 0.0], "token")


def test_a_turn_counts_once_however_long_it_is():
    long = Sample({"id": "a"}, 0, "policy", [7], list(range(5)), [-1.0] * 5, "stop", "")
    long.versions, long.scores, long.reward = [0] * 5, {"r": 3.0}, 3.0
    long.turns = [Turn(3, 1, 1.0), Turn(1, 0, 2.0)]
    short = visits(0, [1], 0.0, [0.0])
    value = returns_of([long, short], epsilon=0.0).values_X
    # Returns of the three turns: 3, 2 and 0.
    spread = (14 / 9) ** 0.5
    assert value.tolist() == pytest.approx([(3 - 5 / 3) / spread] * 3 + [(2 - 5 / 3) / spread, -5 / 3 / spread])
    assert returns_of([short, short]).values_X.tolist() == [0.0, 0.0]


def judged(rewards, values, *, truncated=False, end=0.0):
    """Return a batch of one episode of two-token turns that were paid, and the critic's values of its tokens."""
    turns = [Turn(2, 1, paid, ok=paid >= 0) for paid in rewards]
    made = episode(turns, 3 * len(rewards))
    made.finish = "length" if truncated else "stop"
    made.reward = 5.0
    batch = forest([made])
    batch = batch.with_paths(value_end=torch.tensor([end], dtype=torch.float64))
    return batch, torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("truncated", "rewards"), [(False, "episode"), (True, "turns"), (True, "episode")])
def test_gae_over_turns_is_that_of_a_chain_with_one_state_per_turn(truncated, rewards):
    """Values at the second token of a turn do not count; gamma and lambda are per turn."""
    batch, value_T = judged([0.5, -1.0, 2.0], [1.0, 90.0, 2.0, 91.0, 4.0, 92.0], truncated=truncated, end=3.0)
    column = turn_gae(
        of_rewards(batch),
        batch,
        value_T,
        batch.sampled("earned"),
        batch.sampled("turn"),
        gamma=0.9,
        lam=0.8,
        rewards=rewards,
    )
    paid = [0.5, -1.0, 2.0] if rewards == "turns" else [0.0, 0.0, 5.0]
    after = [2.0, 4.0, 3.0 if truncated else 0.0]
    delta = [r + 0.9 * v - now for r, v, now in zip(paid, after, [1.0, 2.0, 4.0], strict=True)]
    expected = [sum((0.9 * 0.8) ** k * delta[s + k] for k in range(3 - s)) for s in range(3)]
    assert column.values_X.tolist() == pytest.approx([a for a in expected for _ in range(2)])
    target = [a + v for a, v in zip(expected, [1.0, 2.0, 4.0], strict=True)]
    assert column.return_X.tolist() == pytest.approx([t for t in target for _ in range(2)])


def test_gae_over_turns_with_lambda_one_is_the_return_minus_the_value():
    batch, value_T = judged([0.5, -1.0, 2.0], [1.0, 0.0, 2.0, 0.0, 4.0, 0.0])
    columns = (batch.sampled("earned"), batch.sampled("turn"))
    column = turn_gae(of_rewards(batch), batch, value_T, *columns, lam=1.0, rewards="turns")
    assert column.values_X[::2].tolist() == pytest.approx([1.5 - 1.0, 1.0 - 2.0, 2.0 - 4.0])
    assert column.return_X[::2].tolist() == pytest.approx([1.5, 1.0, 2.0])


def test_rewards_of_turns_count_only_where_the_episode_earned_enough():
    turns = [Turn(1, 1, 0.5), Turn(2, 0, 0.25)]
    batch = forest([episode(turns, 4), episode(turns, 4)])
    batch = replace(batch, paths={**batch.paths, "reward": torch.tensor([1.0, 0.9], dtype=torch.float64)})
    columns = (batch.sampled("earned"), batch.sampled("turn"))
    column = gated_turns(of_rewards(batch), batch, *columns, at_least=1.0, weight=2.0)
    assert column.values_X.tolist() == pytest.approx([1.0, 0.0, 1.0 + 0.5, 0.0, 0.0, 0.9])


def test_failed_turns_have_the_advantage_that_was_written():
    batch, _ = judged([0.5, -1.0], [0.0] * 4)
    advantage_T = torch.tensor([3.0, 3.0, 3.0, 3.0])
    assert overwrite_failed(advantage_T, batch.sampled("ok"), value=-0.5).tolist() == [3.0, 3.0, -0.5, -0.5]


def spoken(conversation, moments, reward):
    """Return the sample of a role with turns of one token, each before an observed one, at places of an episode."""
    made = visits(conversation, [0] * len(moments), reward)
    values = {name: getattr(made, name) for name in made.__dataclass_fields__}
    return RoleSample(**values, conversation=conversation, moments=list(moments), places=sorted(set(moments)))


def test_gae_across_roles_goes_through_the_turns_of_an_episode_in_their_order():
    """Roles a and b speak in turn; a third role of another policy speaks at place 2. Episode 4 has one turn."""
    samples = [spoken(3, [0, 3], 1.0), spoken(3, [1, 4], 3.0), spoken(4, [0], 8.0)]
    batch = forest(samples)
    batch = batch.with_paths(**role_columns(samples, samples)).with_tokens(moment=locate_turns(batch, samples, samples))
    value_T = torch.tensor([10.0, 30.0, 20.0, 40.0, 5.0], dtype=torch.float64)
    column = gae_across_roles(of_rewards(batch), batch, value_T, batch.sampled("moment"), gamma=0.9, lam=0.5)
    delta = [0.9 * 20 - 10, 0.9 * 30 - 20, 0.9 * 40 - 30, (1.0 + 3.0) / 2 - 40]  # a, b, a, b
    a = [sum(0.45**k * delta[s + k] for k in range(4 - s)) for s in range(4)]
    assert column.values_X.tolist() == pytest.approx([a[0], a[2], a[1], a[3], 8.0 - 5.0])
    assert column.return_X.tolist() == pytest.approx([a[0] + 10, a[2] + 30, a[1] + 20, a[3] + 40, 8.0])


def test_turns_between_which_a_roles_own_environment_answered_keep_their_order():
    samples = [spoken(0, [0, 0, 2], 1.0), spoken(0, [1], 1.0)]
    batch = forest(samples)
    moments = locate_turns(batch, samples, samples).tolist()
    assert sorted(range(4), key=moments.__getitem__) == [0, 1, 3, 2]
    assert len(set(moments)) == 4


def test_gae_across_roles_needs_roles():
    batch, value_T = judged([0.0], [0.0, 0.0])
    with pytest.raises(StepError, match="use `turn_gae`"):
        gae_across_roles(of_rewards(batch), batch, value_T, value_T)
