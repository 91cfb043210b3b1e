"""Contrastive UCB: contrastive features are ratios of probabilities, and the bonus made from them falls with visits.

Not shown: sample complexity, Atari. Not here: Markov games.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.tables.counts import read_table
from learning.control.tables.planning import LowRank, contrast, measure_novelty
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.recipe.load import load_recipe
from tests.control_worlds import keep_steps

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/contrastive-ucb.yaml").stages


def make(states, actions, stage="contrastive", **options):
    use = STAGES[stage].loss
    torch.manual_seed(0)
    changed = type(use).model_validate(use.model_dump(exclude_unset=True) | options)
    return bind(changed, "loss")(Networks(Spaces(states, actions), NetworkSettings(hidden_sizes=[])))


def test_the_loss_is_that_of_real_and_negative_next_states():
    """Two real next states of (0, 0), f = (2, .5): the means of log(1 + 1/f) and of log(1 + f) over all."""
    ratio = torch.tensor([[[2.0, 0.5]], [[1.0, 1.0]]])
    counts = torch.zeros(2, 1, 2)
    counts[0, 0] = torch.tensor([3.0, 1.0])
    real = (3 * math.log(1.5) + math.log(3)) / 4
    negative = (math.log(3) + math.log(1.5)) / 2
    assert contrast(ratio, counts).item() == pytest.approx(real + negative, rel=1e-6)


def test_the_minimiser_is_the_ratio_of_probabilities():
    """P = (.9, .1) with even negatives: f = (1.8, .2), within 2 %."""
    torch.manual_seed(0)
    model, counts = LowRank(2, 1, 2), torch.tensor([[[9.0, 1.0]], [[2.0, 8.0]]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(1500):
        optimizer.zero_grad()
        contrast(model(), counts).backward()
        optimizer.step()
    assert model().detach().flatten().tolist() == pytest.approx([1.8, 0.2, 0.4, 1.6], rel=0.02)
    assert torch.allclose(model.make_features().norm(dim=-1), torch.ones(2, 1))


def test_the_bonus_of_features_falls_with_visits_and_is_shared_by_what_looks_alike():
    """One-hot features, ridge 1: 1 / √(1 + n). Equal features have equal bonuses."""
    one_hot = np.eye(3)[None]
    novelty = measure_novelty(one_hot, np.array([[0.0, 3.0, 8.0]]), 1.0)
    assert novelty[0].tolist() == pytest.approx([1, 0.5, 1 / 3])
    alike = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    shared = measure_novelty(alike, np.array([[3.0, 0.0, 0.0]]), 1.0)
    assert shared[0].tolist() == pytest.approx([0.5, 0.5, 1.0])
    slanted = np.array([[[0.6, 0.8], [0.0, 1.0]]])
    sigma = 2 * np.eye(2) + 5 * np.outer([0.6, 0.8], [0.6, 0.8])
    expected = [math.sqrt(v @ np.linalg.solve(sigma, v)) for v in slanted[0]]
    assert measure_novelty(slanted, np.array([[5.0, 0.0]]), 2.0)[0].tolist() == pytest.approx(expected)


def test_values_add_rewards_bonuses_and_the_models_next_values():
    """Two steps: every number again from the features that the algorithm holds."""
    algorithm = make(3, 2, horizon=2, rank=3, bonus=0.3, ridge=1.0, steps=200)
    rows = (
        [(0, 0, 0.2, 1, False)] * 6 + [(0, 0, 0.2, 2, False)] * 2 + [(1, 1, 0.5, 1, True)] * 3 + [(0, 1, 0.0, 2, False)]
    )
    algorithm.fit(keep_steps(rows, 3), None)
    with torch.no_grad():
        phi, ratio = algorithm.loss.make_features().double().numpy(), algorithm.loss().double().numpy()
    sigma = np.eye(3)
    for state, action, *_ in rows:
        sigma += np.outer(phi[state, action], phi[state, action])
    value = np.zeros(3)
    for _ in range(2):
        q = np.zeros((3, 2))
        for state in range(3):
            for action in range(2):
                mine = [row for row in rows if row[:2] == (state, action)]
                reward = np.mean([row[2] for row in mine]) if mine else 0
                goes_on = np.mean([not row[4] for row in mine]) if mine else 0
                bonus = 0.3 * math.sqrt(phi[state, action] @ np.linalg.inv(sigma) @ phi[state, action])
                chance = ratio[state, action] / ratio[state, action].sum()
                q[state, action] = min(2.0, reward + bonus + goes_on * chance @ value)
        value = q.max(1)
    assert read_table(algorithm.actor) == pytest.approx(q, abs=1e-4)
    fitted = ratio[0, 0] / ratio[0, 0].sum()
    assert fitted == pytest.approx([0, 0.75, 0.25], abs=0.1)


def test_without_a_bonus_an_arm_that_was_never_taken_stays_below_the_optimistic_one():
    rows = [(0, 0, 0.2, 0, True)] * 4
    values = {}
    for name in ("contrastive", "greedy"):
        algorithm = make(1, 2, name, horizon=1, rank=2)
        algorithm.fit(keep_steps(rows, 1), None)
        values[name] = read_table(algorithm.actor)[0]
    assert values["greedy"].tolist() == pytest.approx([0.2, 0.0])
    assert values["contrastive"][1] > 0.2
    assert STAGES["greedy"].loss.options["bonus"] == 0.0


def test_the_arms_differ_in_the_bonus_or_the_whole_planner():
    ours, greedy, counts = (STAGES[name].model_dump() for name in ("contrastive", "greedy", "counts"))
    assert (ours["loss"].pop("bonus"), greedy["loss"].pop("bonus")) == (1.0, 0.0)
    assert ours == greedy
    assert ours["loss"] == {"use": "contrastive_ucb", "horizon": 5, "rank": 8}
    assert counts.pop("loss") == {"use": "ucb_vi", "horizon": 5, "bonus": 0.01}
    ours.pop("loss")
    assert ours == counts
    assert ours["environment_steps"] == 1000
