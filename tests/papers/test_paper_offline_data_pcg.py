"""Offline data in generated worlds: imitation before PPO or beside it, of stated episodes, on levels never seen.

Not shown: the thresholds of success in MiniGrid's hard worlds.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.buffers.buffer import fill_buffer
from learning.control.buffers.rollouts import stack_rollout
from learning.control.networks.build import Networks
from learning.control.policies.policy import load_control_policy
from learning.control.stepping.transitions import read_transitions
from learning.control.stepping.worlds import Worlds
from learning.control.training import ControlLoop
from learning.control.worlds.grids import rooms
from learning.lookup import bind
from schemas.recipe.load import load_recipe
from tasks import collect, control
from tasks.context import Context
from tasks.control import continue_from

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "offline-data-pcg.yaml"
STAGES = load_recipe(RECIPE).stages
SHORT = {"environment_steps": 64, "rollout_steps": 8, "num_envs": 4, "num_iterations": 2, "batch_size": 16}


def run(stage, task, folder, inputs=None):
    """Run a stage, and return the folder of its outputs."""
    context = Context(inputs or {}, folder, folder / "checkpoints", seed=5)
    context.folder.mkdir(parents=True)
    task.run(stage, context)
    return folder / "outputs"


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    return run(STAGES["demonstrations"], collect, tmp_path_factory.mktemp("pcg") / "d") / "transitions"


@pytest.fixture(scope="module")
def clone(demonstrations, tmp_path_factory):
    stage = STAGES["clone"].model_copy(update={"max_steps": 20})
    return run(stage, control, tmp_path_factory.mktemp("pcg") / "c", {"data.0": demonstrations}) / "model"


def make_loop(stage, demonstrations, tmp_path):
    worlds = Worlds(bind(stage.env, "env"), 4, 0, "test")
    return ControlLoop(
        stage=stage,
        algorithm=bind(stage.loss, "loss")(Networks(worlds.spaces, stage.networks)),
        make=rooms,
        spaces=worlds.spaces,
        worlds=worlds,
        data=fill_buffer([read_transitions(demonstrations)]) if stage.data else None,
        terms={name: bind(use, f"loss_terms.{name}") for name, use in stage.loss_terms.items()},
        exploration=None,
        reporter=None,
        checkpoints=tmp_path,
        seed=0,
    )


def list_gradients(loss, actor):
    for parameter in actor.parameters():
        parameter.grad = None
    loss.backward()
    return torch.cat([(0 * p if p.grad is None else p.grad).flatten() for p in actor.parameters()])


def test_with_no_rewards_the_gradient_beside_ppo_is_the_weighted_cloning_gradient(demonstrations, tmp_path):
    loop = make_loop(STAGES["concurrent"], demonstrations, tmp_path)
    actor = loop.algorithm.actor
    batch = stack_rollout([loop.collect(0) for _ in range(8)]).reshape(-1)
    batch["action_log_prob"] = actor.get_dist(batch.select("observation")).log_prob(batch["action"]).detach()
    batch["advantage"], batch["value_target"] = torch.zeros(len(batch), 1), torch.zeros(len(batch), 1)
    terms = loop.compute_terms(batch, 0)
    assert list_gradients(terms["loss_objective"] + terms["loss_entropy"], actor).abs().max() == 0
    loop.rng = np.random.default_rng(7)
    terms = loop.compute_terms(batch, 0)
    ours = list_gradients(terms["loss_objective"] + terms["imitation"], actor)
    drawn = np.random.default_rng(7).integers(len(loop.data), size=loop.stage.batch_size)
    data = loop.data.make_batch(torch.from_numpy(drawn))
    cloning = -actor.get_dist(data.select("observation")).log_prob(data["action"]).mean()
    assert torch.allclose(ours, 0.5 * list_gradients(cloning, actor), atol=1e-7)
    assert ours.abs().max() > 1e-3


def test_without_weight_the_concurrent_arm_is_ppo_bit_for_bit(demonstrations, tmp_path):
    weightless = {"imitation": STAGES["concurrent"].loss_terms["imitation"].model_copy(update={"coef": 0.0})}
    stages = {
        "scratch": STAGES["scratch"].model_copy(update=SHORT),
        "weightless": STAGES["concurrent"].model_copy(update={**SHORT, "loss_terms": weightless}),
        "concurrent": STAGES["concurrent"].model_copy(update=SHORT),
    }
    files = {}
    for name, stage in stages.items():
        inputs = {"data.0": demonstrations} if stage.data else {}
        files[name] = (run(stage, control, tmp_path / name, inputs) / "model" / "actor.safetensors").read_bytes()
    assert files["weightless"] == files["scratch"]
    assert files["concurrent"] != files["scratch"]


def test_pretraining_begins_with_the_clone(clone, tmp_path):
    start = load_control_policy(clone)
    algorithm = bind(STAGES["pretrained"].loss, "loss")(Networks(start.spaces, start.settings))
    continue_from(start, algorithm, clone)
    trained, given = (dict(actor.state_dict()) for actor in (algorithm.actor, start.actor))
    tensors = [name for name, value in given.items() if isinstance(value, torch.Tensor)]
    assert tensors
    assert all(torch.equal(trained[name], given[name]) for name in tensors)
    assert STAGES["pretrained"].model == "clone"


def test_the_clone_makes_the_demonstrations_likely(clone, demonstrations):
    actor, data = load_control_policy(clone).actor, fill_buffer([read_transitions(demonstrations)])
    batch = data.make_batch(torch.arange(len(data)))
    with torch.no_grad():
        loss = -actor.get_dist(batch.select("observation")).log_prob(batch["action"]).mean()
    assert loss < math.log(4) - 0.2


@pytest.mark.parametrize(("levels", "episodes", "mistakes"), [(50, 20, 0.0), (3, 8, 0.0), (3, 8, 0.5)])
def test_the_demonstrations_are_as_many_as_good_and_of_as_many_levels_as_the_recipe_says(
    levels, episodes, mistakes, tmp_path
):
    given = [f"vars.levels={levels}", f"vars.episodes={episodes}", f"vars.mistakes={mistakes}"]
    stage = load_recipe(RECIPE, overrides=given).stages["demonstrations"]
    data = read_transitions(run(stage, collect, tmp_path / "d") / "transitions")
    assert len(np.unique(data.episode)) == episodes
    first = data.observation[data.step == 0].reshape(-1, 3 * 25)
    assert 2 <= len(np.unique(first, axis=0)) <= levels
    steps = np.bincount(data.episode)
    shortest = [find_distance(start.reshape(3, 5, 5)) for start in first]
    assert (steps >= shortest).all()
    assert (steps == shortest).all() == (mistakes == 0)
    last = np.append(np.diff(data.episode) != 0, True)
    assert data.terminated[last].all()
    assert data.reward[last] == pytest.approx(1 - 0.9 * steps / 40, abs=1e-6)
    assert not data.reward[~last].any()
    for walls, goal, agent in first.reshape(-1, 3, 5, 5) > 0:
        (wall,) = np.flatnonzero(walls.any(0))
        assert walls[:, wall].sum() == 4
        assert agent.any(0).argmax() < wall < goal.any(0).argmax()


def test_walls_and_borders_stop_the_agent():
    world = rooms(levels=1, first=3)
    shown, _ = world.reset(seed=0)
    walls, rng = shown[0] > 0, np.random.default_rng(0)
    places = set()
    for _ in range(200):
        before = shown[2] > 0
        move = int(rng.integers(4))
        shown, _, terminated, truncated, _ = world.step(move)
        row, column = np.argwhere(before)[0] + [(-1, 0), (1, 0), (0, -1), (0, 1)][move]
        open_cell = 0 <= row < 5 and 0 <= column < 5 and not walls[row, column]
        assert (shown[2] > 0)[(row, column) if open_cell else tuple(np.argwhere(before)[0])]
        places.add(open_cell)
        if terminated or truncated:
            shown, _ = world.reset(seed=0)
    assert places == {True, False}


def find_distance(layers):
    """The number of moves to the goal, by spreading from the agent until it is reached."""
    walls, goal, reached = layers[0] > 0, layers[1] > 0, layers[2] > 0
    for moves in range(25):
        if reached[goal].any():
            return moves
        spread = np.pad(reached, 1)
        reached = (spread[:-2, 1:-1] | spread[2:, 1:-1] | spread[1:-1, :-2] | spread[1:-1, 2:] | reached) & ~walls
    raise AssertionError("no way to the goal")


def test_the_report_plays_levels_that_no_training_saw():
    def list_levels(use):
        world = bind(use, "env")()
        return {world.reset(seed=seed)[1]["level"] for seed in range(300)}

    trained, reported = list_levels(STAGES["scratch"].env), list_levels(STAGES["report"].env)
    assert trained <= set(range(50))
    assert len(trained) == 50
    assert not trained & reported
    assert len(reported) > 80


def test_the_arms_differ_in_the_use_of_the_demonstrations():
    arms = {name: STAGES[name].model_dump() for name in ("scratch", "pretrained", "concurrent")}
    differ = {name: {key for key in arm if arm[key] != arms["scratch"][key]} for name, arm in arms.items()}
    assert differ == {"scratch": set(), "pretrained": {"model"}, "concurrent": {"data", "loss_terms"}}
    assert STAGES["clone"].data == ["demonstrations"] == STAGES["concurrent"].data
    assert set(STAGES["report"].models) == {"scratch", "clone", "concurrent", "pretrained"}
