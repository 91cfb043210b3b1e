"""SS-ORL: an inverse dynamics model recovers the hidden actions, and offline values learn from the union.

Not shown: the sweep over D4RL, and that a tenth of the labels suffices there.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import read_transitions, write_transitions
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.recipe.load import load_recipe
from tasks import collect, python
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "ss-orl.yaml").stages
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


def run(name, folder, inputs, seed=1):
    """Run a stage of the recipe, and return the folder of its transitions and its metrics."""
    stage, task = STAGES[name], {"collect": collect, "python": python}[STAGES[name].kind]
    context = Context(inputs, folder / name, folder / name / "checkpoints", seed=seed)
    context.folder.mkdir(parents=True)
    return folder / name / "outputs" / "transitions", task.run(stage, context).metrics


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The transitions of all stages that write some, by name, and the metrics of the labelling."""
    folder = tmp_path_factory.mktemp("ss")
    paths = {name: run(name, folder, {})[0] for name in ("labelled", "seen")}
    paths["unlabelled"], _ = run("unlabelled", folder, {"inputs.transitions": paths["seen"]})
    inputs = {"inputs.labelled": paths["labelled"], "inputs.unlabelled": paths["unlabelled"]}
    paths["union"], metrics = run("union", folder, inputs)
    return {name: read_transitions(path) for name, path in paths.items()}, metrics


def find_moves(data):
    """The action that must have led to each next cell, −1 where none is seen to have: a move against the border."""
    change = np.round((data.next_observation - data.observation) * 5).astype(int)
    return np.where((change[:, None] == MOVES).all(-1).any(1), (change[:, None] == MOVES).all(-1).argmax(1), -1)


def test_the_labels_are_the_actions_that_were_hidden(made):
    data, metrics = made
    labels = data["union"].action[len(data["labelled"]) :]
    assert (data["unlabelled"].action == -1).all()
    assert (labels == data["seen"].action).all()
    assert (labels == find_moves(data["seen"])).all()
    moved = find_moves(data["labelled"]) >= 0
    assert 0.6 < moved.mean() < 0.95
    assert metrics["accuracy"] >= moved.mean()  # all but moves against a border, which look alike


def test_labels_are_right_where_no_labelled_walk_was(made, tmp_path):
    """The far corner is out of reach of nine moves; changes look alike everywhere."""
    data, _ = made
    corner = data["seen"].next_observation.min(1) == 1
    assert corner.any()
    assert not (data["labelled"].next_observation.min(1) == 1).any()
    assert (data["union"].action[len(data["labelled"]) :][corner] == data["seen"].action[corner]).all()


def test_the_union_holds_both_and_changes_no_label(made):
    data, metrics = made
    count = len(data["labelled"])
    assert len(data["union"]) == count + len(data["unlabelled"])
    assert metrics["labelled"] == count
    assert metrics["proxy_labelled"] == len(data["unlabelled"])
    assert np.array_equal(data["union"].action[:count], data["labelled"].action)
    assert np.array_equal(data["union"].reward, np.concatenate([data["labelled"].reward, data["seen"].reward]))
    episodes = len(np.unique(data["labelled"].episode)) + len(np.unique(data["seen"].episode))
    assert len(np.unique(data["union"].episode)) == episodes


def test_the_labels_do_not_depend_on_what_was_hidden(made, tmp_path):
    data, _ = made
    (tmp_path / "seen").mkdir()
    write_transitions(tmp_path / "seen", replace(data["seen"], action=3 - data["seen"].action))
    hidden, _ = run("unlabelled", tmp_path, {"inputs.transitions": tmp_path / "seen"})
    assert np.array_equal(read_transitions(hidden).action, data["unlabelled"].action)


def solve(data, gamma):
    """Values of all cells and actions by exact Q-learning on the data alone; what is not in it has the value 0."""
    cells = np.round(data.observation * 5).astype(int) @ (6, 1)
    after = np.round(data.next_observation * 5).astype(int) @ (6, 1)
    q = np.zeros((36, 4))
    for _ in range(60):
        q[cells, data.action] = data.reward + gamma * ~data.terminated * q[after].max(1)
    return q


def test_offline_values_reach_the_start_through_the_union_alone(made):
    """The corner is d = 10 moves away: V = γ^(d − 1)."""
    data, _ = made
    gamma = STAGES["proxy"].loss.gamma
    assert solve(data["labelled"], gamma)[0].max() == 0
    assert solve(data["union"], gamma)[0].max() == pytest.approx(gamma**9)
    assert solve(data["union"], gamma)[0].max() == pytest.approx(0.387, abs=1e-3)


def test_the_conservative_term_lowers_choices_that_are_not_in_the_data():
    torch.manual_seed(0)
    algorithm = bind(STAGES["proxy"].loss, "loss")(Networks(Spaces(2, 4), NetworkSettings(hidden_sizes=[])))
    batch = TensorDict({"observation": torch.rand(5, 2), "action": torch.tensor([0, 1, 2, 3, 0])}, [5])
    term = bind(STAGES["proxy"].loss_terms["conservative"], "loss_terms.conservative")
    values = algorithm.actor(batch.select("observation"))["action_value"].detach()
    expected = np.mean([float(torch.log(v.exp().sum()) - v[a]) for v, a in zip(values, batch["action"], strict=True)])
    assert term.ask(0, {"batch": batch, "loss": algorithm.loss}).item() == pytest.approx(expected, rel=1e-5)
    assert STAGES["proxy"].loss_terms["conservative"].coef == 0.1


def test_the_arms_differ_in_their_data_alone():
    arms = {name: STAGES[name].model_dump() for name in ("alone", "proxy", "known")}
    assert {name: arm.pop("data") for name, arm in arms.items()} == {
        "alone": ["labelled"],
        "proxy": ["union"],
        "known": ["labelled", "seen"],
    }
    assert arms["alone"] == arms["proxy"] == arms["known"]
    assert STAGES["labelled"].env.limit == 9
    assert dict(STAGES["report"].models) == {name: name for name in ("alone", "known", "proxy")}
