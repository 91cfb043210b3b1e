"""A league: which past version plays, what is counted about it, and what weights it refuses."""

from pathlib import Path

import numpy as np
import pytest
import torch

from learning.collection.leagues import prioritised, recent, uniform
from learning.lookup import bind
from learning.rl.league import League
from learning.samples.conversation import RoleSample
from schemas.errors import StepError
from schemas.roles import LeagueSpec

ROW = {"id": "0"}


def bad(age_K):
    """Weights that are none."""
    return age_K - 1


def make_league(folder: Path, **settings):
    spec = LeagueSpec.model_validate(settings)
    return League("past", folder, spec, bind(spec.weights, "policies.past.league.weights"))


def play(number, own, other):
    """An episode in which the trained policy's two roles and the past version earned these."""
    shared = {"row": ROW, "group": 0, "source": "policy", "prompt_ids": [], "completion_ids": [], "logprobs": None}
    rewards = [("one", "model", own[0]), ("three", "model", own[1]), ("two", "past", other)]
    return [
        RoleSample(**shared, finish="stop", text="", reward=reward, role=role, policy=policy, conversation=number)
        for role, policy, reward in rewards
    ]


def test_weights_of_versions():
    won_K = np.array([0.9, 0.5, 1.0])
    assert uniform(np.array([20.0, 10.0, 0.0])) == pytest.approx([1, 1, 1])
    assert recent(np.array([20.0, 10.0, 0.0]), half_life=10.0) == pytest.approx([0.25, 0.5, 1.0])
    assert prioritised(won_K) == pytest.approx([0.01, 0.25, 0.01])
    assert prioritised(won_K, floor=0.0) == pytest.approx([0.1**2, 0.25, 0.0])
    assert prioritised(won_K, power=1.0, floor=0.0) == pytest.approx([0.1, 0.5, 0.0])
    assert prioritised(won_K, by="even", floor=0.0) == pytest.approx([0.09, 0.25, 0.0])


def test_wins_are_counted_for_the_version_that_played(tmp_path):
    league = make_league(tmp_path, weights={"use": "prioritised", "floor": 0.0, "power": 1.0})
    for step in (0, 10):
        league.keep(step, {"w": torch.full((1,), float(step))})
    league.current = 1
    # Means of the own roles: 1.5 (won), −1 (lost), 1 (draw), and no reward of the other, which does not count.
    episodes = [*play(0, (2, 1), 1), *play(1, (-1, -1), 0), *play(2, (0, 2), 1), *play(3, (1, 1), None)]
    assert league.record(episodes) == {
        "league/past/version": 10.0,
        "league/past/versions": 2.0,
        "league/past/won": pytest.approx(0.5),
    }
    league.record(play(4, (3, 3), 0))
    assert (league.won, league.played) == ([0.0, 2.5], [0, 4])
    # A version that has not played counts as an equal.
    assert league.compute_probabilities(12) == pytest.approx([0.5 / 0.875, 0.375 / 0.875])


def test_versions_are_drawn_as_often_as_they_weigh(tmp_path):
    league = make_league(tmp_path, weights={"use": "recent", "half_life": 10.0})
    for step in (0, 10, 20):
        league.keep(step, {"w": torch.full((1,), float(step))})
    drawn = []
    for number in range(400):
        weights = league.draw(number, 20)
        assert float(weights["w"]) == league.saved[league.current]
        drawn.append(league.current)
    assert np.bincount(drawn) / 400 == pytest.approx(np.array([1, 2, 4]) / 7, abs=0.07)
    again = make_league(tmp_path, weights={"use": "recent", "half_life": 10.0})
    again.load(league.to_json())
    assert [again.draw(number, 20) and again.current for number in range(20)] == drawn[:20]


def test_only_the_newest_versions_play(tmp_path):
    league = make_league(tmp_path, save_steps=5, max_versions=2)
    league.keep(0, {"w": torch.zeros(1)})
    for step in range(11):
        league.keep_if_due(step, {"w": torch.full((1,), float(step))})
    assert league.saved == [5, 10]
    assert league.played == [0, 0]


def test_weights_that_are_none_and_damaged_versions_are_refused(tmp_path):
    league = make_league(tmp_path, weights=f"{__name__}:bad")
    league.keep(0, {"w": torch.zeros(1)})
    with pytest.raises(StepError, match=r"policies.past.league.weights: .*bad returned \[-1.0\] for 1 versions"):
        league.draw(0, 0)
    (tmp_path / "version-00000000/step-00000000/tensors.safetensors").write_bytes(b"other")
    with pytest.raises(StepError, match="the version of iteration 0 is missing or damaged"):
        league.draw(0, 2)
