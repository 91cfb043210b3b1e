"""OPPO: no reward is read, the preferred summary moves to the chosen side, and the policy acts for it.

Not shown: scores on D4RL, people.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.buffers.buffer import Buffer
from learning.control.losses.decision_transformer import find_episodes
from learning.control.losses.preferred_context import compare, cut_windows, rate_pairs
from learning.control.networks.build import Networks
from learning.control.networks.context_actor import NUMBERS
from learning.control.policies.policy import load_control_policy
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import join_transitions, read_transitions, write_transitions
from learning.control.worlds.points import Point, ends_near
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import collect, control
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/oppo.yaml").stages
SPACES = Spaces(2, 2, (-1.0, -1.0), (1.0, 1.0))


def run(name, folder, inputs, seed=1, **changes):
    """Run a stage of the recipe, and return the folder of its outputs."""
    stage = STAGES[name].model_copy(update=changes)
    context = Context(inputs, folder, folder / "checkpoints", seed=seed)
    context.folder.mkdir(parents=True)
    {"collect": collect, "control": control}[stage.kind].run(stage, context)
    return folder / "outputs"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("oppo")
    return {name: run(name, folder / name, {}) / "transitions" for name in ("right", "left")}


def train(data, folder, steps):
    inputs = {f"data.{i}": data[name] for i, name in enumerate(STAGES["preferred"].data)}
    return run("preferred", folder, inputs, max_steps=steps) / "model"


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    return train(data, tmp_path_factory.mktemp("trained") / "run", 250)


@pytest.fixture
def algorithm():
    torch.manual_seed(0)
    return bind(STAGES["preferred"].loss, "loss")(Networks(SPACES, NetworkSettings(hidden_sizes=[16], context=12)))


@pytest.fixture
def batch(data, algorithm):
    torch.manual_seed(1)
    return algorithm.draw([fill(data)], 16)


def fill(data):
    """A buffer with the recipe's data."""
    joined = join_transitions([read_transitions(data[name]) for name in ("right", "left")])
    buffer = Buffer(len(joined), joined.spaces)
    buffer.add(joined)
    return buffer


def test_the_comparison_of_one_number():
    """z* = 0, z⁺ = 1, z⁻ = 2 and a margin of .5: 0; with labels exchanged 1.5, and z* is pulled to what is chosen."""
    anchor, near, far = (torch.tensor([[float(x)]]) for x in (0, 1, 2))
    assert compare(anchor[0], near, far, 0.5).item() == 0.0
    moved = anchor[0].clone().requires_grad_()
    loss = compare(moved, far, near, 0.5)
    assert loss.item() == pytest.approx(1.5)
    between = torch.tensor([1.5], requires_grad=True)
    compare(between, far, near, 0.5).backward()
    assert between.grad.item() == pytest.approx(-2.0)


def list_trained(algorithm):
    trained = {n for n, p in algorithm.loss.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    return {name.removeprefix("actor_network.").split(".")[0] for name in trained}


def test_each_loss_trains_its_own_part(batch, algorithm):
    expected = {
        "loss_action": {"policy", "encoder"},
        "loss_summary": {"encoder"},
        "loss_norm": {"encoder"},
        "loss_preferred": {"preferred"},
    }
    assert set(algorithm.terms) == set(expected)
    for name, parts in expected.items():
        algorithm.loss.zero_grad()
        algorithm.loss(batch)[name].backward()
        assert list_trained(algorithm) == parts


def test_the_losses_by_their_formulas(batch, algorithm):
    losses, actor = algorithm.loss(batch), algorithm.actor
    with torch.no_grad():
        total, count = 0.0, 0
        for row in batch["window"]:
            kept = row["observation"][row["mask"]], row["action"][row["mask"]]
            summary = actor.encoder(torch.cat(kept, -1)).mean(0)
            shown = torch.cat([kept[0], summary.expand(len(kept[0]), NUMBERS)], -1)
            params = actor.policy.get_dist_params(actor.condition(kept[0], summary))
            assert torch.equal(actor.condition(kept[0], summary)["observation"], shown)
            total -= actor.policy.build_dist_from_params(params).log_prob(kept[1]).sum().item()
            count += len(kept[0])
        chosen, rejected, window = (actor.summarise(batch[name]) for name in ("chosen", "rejected", "window"))
        gaps = [
            max(0.0, math.dist(actor.preferred, a) - math.dist(actor.preferred, b) + 1)
            for a, b in zip(chosen, rejected, strict=True)
        ]
        lengths = torch.cat([window, chosen, rejected]).norm(dim=-1)
    assert losses["loss_action"].item() == pytest.approx(total / count, rel=1e-4)
    assert losses["loss_preferred"].item() == pytest.approx(np.mean(gaps), rel=1e-4)
    assert losses["loss_summary"].item() == pytest.approx(0.1 * np.mean(gaps), rel=1e-4)
    assert losses["loss_norm"].item() == pytest.approx(0.1 * (lengths - 1).square().mean().item(), rel=1e-4)


def test_windows_end_with_their_episode(data):
    episodes = find_episodes(fill(data).save())
    window = cut_windows(episodes, torch.tensor([0, 7, 12]), 12)
    assert window["mask"].sum(1).tolist() == [12, 5, 12]
    assert torch.equal(window["observation"][1, :5], episodes.columns["observation"][7:12])
    assert torch.equal(window["observation"][1, 5:], episodes.columns["observation"][11].expand(7, 2))


def test_the_chosen_episode_of_a_pair_ends_farther_to_the_right(data):
    episodes = find_episodes(fill(data).save())
    chosen, rejected = rate_pairs(episodes, ends_near, 100)
    last = [episodes.columns["observation"][episodes.end_C[first]].numpy() for first in (chosen, rejected)]
    assert (np.hypot(*(last[0] - (1, 0)).T) < np.hypot(*(last[1] - (1, 0)).T)).all()
    assert 90 < len(chosen) <= 100
    assert (episodes.step_C[chosen] == 0).all()
    again = rate_pairs(episodes, ends_near, 100)
    assert torch.equal(again[0], chosen)
    with pytest.raises(StepError, match="rates both episodes of every pair alike"):
        rate_pairs(episodes, lambda observation_KO: 1.0, 100)


def test_rewards_that_are_not_there_change_no_bit(data, tmp_path):
    blank = {}
    for name, folder in data.items():
        blank[name] = tmp_path / name
        blank[name].mkdir()
        given = read_transitions(folder)
        write_transitions(blank[name], replace(given, reward=np.full(len(given), np.nan)))
    models = [train(given, tmp_path / f"run{i}", 6) for i, given in enumerate((data, blank))]
    assert len({(model / "networks.safetensors").read_bytes() for model in models}) == 1


def test_the_policy_goes_where_the_preferred_summary_says(data, trained):
    """Right with z*; left with the summary of a rejected episode."""
    policy = load_control_policy(trained)
    place = np.zeros((1, 2), np.float32)
    assert policy.act(place, explore=False)[0, 0] > 0.2
    episodes = find_episodes(fill(data).save())
    _, rejected = rate_pairs(episodes, ends_near, 100)
    with torch.no_grad():
        summaries = policy.actor.summarise(cut_windows(episodes, rejected, 12))
        ends = episodes.columns["observation"][episodes.end_C[rejected]][:, 0]
        policy.actor.preferred.copy_(summaries[ends < 0].mean(0))
    assert policy.act(place, explore=False)[0, 0] < -0.2


def test_the_point_moves_by_a_fifth_of_the_action_and_pays_minus_the_distance():
    world = Point((1.0, 0.0), (0.0, 0.0), 2)
    start, _ = world.reset(seed=0)
    place, reward, terminated, truncated, _ = world.step(np.array([0.5, -1.0]))
    assert place - start == pytest.approx([0.1, -0.2], abs=1e-6)
    assert reward == pytest.approx(-math.dist(place, (1, 0)), abs=1e-6)
    assert (terminated, truncated) == (False, False)
    assert world.step(np.zeros(2))[3]


def test_the_arms_differ_in_what_they_are_told():
    arms = {name: STAGES[name].model_dump() for name in ("preferred", "rewarded", "cloned")}
    assert [arm.pop("algorithm") for arm in arms.values()] == ["preferred_context", "iql", "bc"]
    losses = {name: arm.pop("loss") for name, arm in arms.items()}
    assert losses["preferred"] == {"use": "preferred_context", "rater": {"use": "ends_near", "x": 1.0}}
    assert (losses["rewarded"], losses["cloned"]) == ({"use": "iql"}, {"use": "bc"})
    assert arms["preferred"] == arms["rewarded"] == arms["cloned"]
    assert arms["preferred"]["data"] == ["right", "left"]
    assert arms["preferred"]["max_steps"] == 1000
    assert (STAGES["right"].policy.options, STAGES["left"].policy.options) == ({"x": 1.0}, {"x": -1.0})
