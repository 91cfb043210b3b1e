"""Counts of samples that taught nothing, and the sentences about them."""

import json

import pytest

from learning.rl.sample_counts import SampleCounts, list_equal_groups, refuse_rewards_without_scores
from learning.samples.sample import Sample
from learning.samples.truncation import describe_truncated
from schemas.errors import StepError


def make_samples(*groups, finish="stop"):
    return [
        Sample({"id": f"q{g}"}, g, "policy", [5], [6], [-1.0], finish, "a", scores={"mine": r}, reward=r)
        for g, rewards in enumerate(groups)
        for r in rewards
    ]


def test_a_group_is_equal_if_its_rewards_are_and_needs_two_of_them():
    assert list_equal_groups(make_samples([1, 1], [0, 1], [1, None], [0.5, None, 0.5])) == [True, False, True]


def test_counts_add_up_over_iterations_and_survive_a_checkpoint():
    counts = SampleCounts()
    counts.add(make_samples([1, 1], [0, 1]), {})
    counts.add(make_samples([0, 0], [1, 1], finish="length"), {})
    counts.add(make_samples([None, None]), {"mine": "reward mine raises E"})
    restored = SampleCounts()
    restored.load(json.loads(json.dumps(counts.to_json())))
    assert restored == counts
    cut, unscored, equal = restored.describe(64)
    assert cut == "4 of 10 completions (40%) were cut at max_completion_length: 64; they never reached their end"
    assert unscored == (
        "2 of 10 completions have no reward: reward mine raises E; in 1 of 3 iterations all, so nothing was trained"
    )
    assert equal.startswith("in 3 of 4 groups all completions had the same reward")
    assert "in 1 of 3 iterations this was so in every group" in equal


def test_nothing_is_said_of_samples_that_teach():
    counts = SampleCounts()
    counts.add(make_samples([0, 1], [1, 0]), {})
    assert counts.describe(64) == []
    assert describe_truncated(4, 100, 8) == []
    assert len(describe_truncated(5, 100, 8)) == 1
    assert describe_truncated(5, 5, 1) == []


def test_episodes_are_said_to_end_at_either_limit():
    """An episode of `max_turns` turns has the finish reason of one without room for more tokens."""
    counts = SampleCounts()
    counts.add(make_samples([0, 1], finish="length"), {})
    (text,) = counts.describe(64, 8)
    assert text == (
        "2 of 2 completions (100%) were cut at max_completion_length: 64 or max_turns: 8; they never reached their end"
    )


def test_a_reward_that_scores_nothing_at_first_is_refused_by_name():
    with pytest.raises(StepError, match=r"^reward mine: it returns None for every one of the 4 .* row 'q0'"):
        refuse_rewards_without_scores(make_samples([None, None], [None, None]))
    refuse_rewards_without_scores(make_samples([None, None], [None, 0.0]))
    refuse_rewards_without_scores(make_samples([None]))
