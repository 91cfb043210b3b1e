"""HNPG: the critic of returns and offline data, and the natural gradient step that it gives.

Not shown: the guarantees, and locks that show pictures.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.buffers.buffer import make_batch
from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import read_transitions
from learning.control.tables.counts import read_table, write_table
from learning.control.tables.hybrid_gradient import Targets, fit_values, follow_returns
from learning.control.worlds.locks import SHUT, STATES, draw_combination
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.recipe.load import load_recipe
from tasks import collect, control
from tasks.context import Context
from tests.control_worlds import keep_steps

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/hnpg.yaml").stages


def make(states, actions, stage="hybrid", **options):
    """The algorithm of a stage of the recipe, for other spaces."""
    use = STAGES[stage].loss
    changed = type(use).model_validate(use.model_dump(exclude_unset=True) | options)
    return bind(changed, "loss")(Networks(Spaces(states, actions), NetworkSettings(hidden_sizes=[])))


def roll(rows, states):
    """A rollout of one world, (1, S), from (state, action, reward, next state, whether it ended)."""
    columns = {name: column[None] for name, column in keep_steps(rows, states).items()}
    return make_batch({**columns, "truncated": torch.zeros_like(columns["terminated"])})


OWN = [(0, 0, 1.0, 1, True)]
OFFLINE = [(0, 0, 0.5, 1, False), (1, 0, 2.5, 0, True)]
"""r + γ V(s') is 3 in the first cell: V of the second state is 2.5."""


def test_a_cell_is_the_mean_of_return_and_offline_target_at_equal_counts():
    one = Targets(np.array([0]), np.array([0]), np.array([1.0]), np.array([0.0]), np.array([0]))
    three = Targets(np.array([0]), np.array([0]), np.array([0.5]), np.array([1.0]), np.array([1]), 1.0)
    ends = Targets(np.array([1]), np.array([0]), np.array([2.5]), np.array([0.0]), np.array([0]), 1.0)
    policy = np.full((2, 2), 0.5)
    assert fit_values([one, three, ends], policy, 5)[0, 0] == pytest.approx(2.0)
    assert fit_values([one], policy, 5)[0, 0] == 1.0
    heavy = [one, Targets(*list(vars(three).values())[:5], 3.0), ends]
    assert fit_values(heavy, policy, 5)[0, 0] == pytest.approx((1 + 3 * 3) / 4)


def step(weight, data):
    """Policy of the first state after a step, whose other action is worth 1.5 by the rollout."""
    algorithm = make(2, 2, offline_weight=weight)
    write_table(algorithm.actor, np.zeros((2, 2)))
    algorithm.fit_newest(roll([*OWN, (0, 1, 1.5, 1, True)], 2), data, None)
    return read_table(algorithm.actor)


def test_the_offline_critic_turns_the_actors_preference():
    """Means over parts: own steps weigh 1/2 each, offline ones 1/2: (1 + 3) / 2 = 2 above 1.5, 1 below it."""
    data = keep_steps(OFFLINE, 2)
    with_data, without = step(1.0, data), step(0.0, data)
    assert with_data[0].argmax() == 0
    assert without[0].argmax() == 1
    assert with_data[0, 0] - with_data[0, 1] == pytest.approx(2.0 - 1.5, abs=1e-6)
    assert without[0, 0] - without[0, 1] == pytest.approx(1.0 - 1.5, abs=1e-6)


def test_the_step_is_the_natural_gradient():
    """F⁺ ∇J of a softmax policy, numerically: its logits change by the advantages, up to a constant."""
    logits, q = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True), np.array([1.0, 0.2, 0.6])
    policy = logits.softmax(0)
    gradient = torch.autograd.grad((policy * torch.from_numpy(q)).sum(), logits)[0]
    fisher = torch.diag(policy) - policy[:, None] * policy
    natural = (torch.linalg.pinv(fisher.detach()) @ gradient).numpy()
    algorithm = make(2, 3, step_size=0.7)
    write_table(algorithm.actor, np.stack([logits.detach().numpy(), np.zeros(3)]))
    algorithm.fit_newest(roll([(0, a, q[a], 1, True) for a in range(3)], 2), None, None)
    change = read_table(algorithm.actor)[0] - logits.detach().numpy()
    assert change - change.mean() == pytest.approx(0.7 * (natural - natural.mean()), abs=1e-6)


def test_a_pair_that_was_never_seen_gains_nothing_over_the_policy():
    algorithm = make(2, 3)
    algorithm.fit_newest(roll([(0, 0, 1.0, 1, True), (0, 1, 0.0, 1, True)], 2), None, None)
    table = read_table(algorithm.actor)
    assert table[0, 0] - table[0, 2] == pytest.approx(0.5, abs=1e-6)
    assert table[0, 2] - table[0, 1] == pytest.approx(0.5, abs=1e-6)
    assert (table[1] == table[1, 0]).all()


def test_returns_stop_at_ends_and_take_the_value_where_they_are_cut_off():
    targets = follow_returns(roll([(0, 0, 1.0, 1, False), (1, 0, 2.0, 2, True), (2, 0, 4.0, 0, False)], 3), 0.5)
    assert targets.earned_B.tolist() == [2.0, 2.0, 4.0]
    assert targets.reach_B.tolist() == [0.0, 0.0, 0.5]
    assert targets.after_B.tolist() == [2, 2, 0]
    both = follow_returns(roll([(0, 0, 1.0, 1, False), (1, 0, 2.0, 2, False)], 3), 0.5)
    assert (both.earned_B[0], both.reach_B[0], both.after_B[0]) == (2.0, 0.25, 2)


def test_the_critic_of_the_policy_is_exact_where_everything_was_seen():
    """V of an even policy on a chain of two steps, by one-step targets alone."""
    rows = [(0, 0, 0.0, 1, False), (0, 1, 1.0, 1, True), (1, 0, 4.0, 1, True), (1, 1, 0.0, 1, True)]
    data = keep_steps(rows, 2)
    algorithm = make(2, 2)
    algorithm.fit_newest(roll([(1, 0, 4.0, 1, True)], 2), data, None)
    table = read_table(algorithm.actor)
    assert table[0, 0] - table[0, 1] == pytest.approx(2.0 - 1.0, abs=1e-6)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return run("data", tmp_path_factory.mktemp("hnpg") / "data", {}) / "transitions"


def run(name, folder, inputs, **changes):
    stage = STAGES[name].model_copy(update=changes)
    context = Context(inputs, folder, folder / "checkpoints", seed=3)
    context.folder.mkdir(parents=True)
    {"collect": collect, "control": control}[stage.kind].run(stage, context)
    return folder / "outputs"


def test_without_data_or_weight_it_is_the_natural_policy_gradient_to_the_bit(data, tmp_path):
    few = {"environment_steps": 100}
    plain = run("npg", tmp_path / "plain", {}, **few)
    weightless = STAGES["hybrid"].loss.model_validate({"use": "hybrid_npg", "offline_weight": 0.0})
    none = run("hybrid", tmp_path / "none", {"data.0": data}, **few, loss=weightless)
    hybrid = run("hybrid", tmp_path / "hybrid", {"data.0": data}, **few)
    actors = [(folder / "model" / "actor.safetensors").read_bytes() for folder in (plain, none, hybrid)]
    assert actors[0] == actors[1] != actors[2]


def test_the_data_are_those_of_an_opener_who_slips_once_in_an_episode(data):
    kept = read_transitions(data)
    env = STAGES["data"].env
    combination = draw_combination(env.horizon, env.actions, 0)
    h, state = np.divmod(kept.observation.argmax(1), STATES)
    is_open = state != SHUT
    right = kept.action[is_open] == combination[h[is_open], state[is_open]]
    assert right.mean() == pytest.approx(1 - 0.2 * 2 / 3, abs=0.06)
    assert kept.reward[is_open][~right] == pytest.approx(0.1)
    assert (kept.reward[~is_open] == 0).all()
    won = is_open.copy()
    won[is_open] = right
    assert (kept.reward[won] == (h[won] == env.horizon - 1)).all()
    assert len(kept) == 250


def test_the_arms_differ_in_the_data_or_the_whole_learner():
    hybrid, npg, replay = (STAGES[name].model_dump() for name in ("hybrid", "npg", "off_policy"))
    assert (hybrid.pop("data"), npg.pop("data"), replay["data"]) == (["data"], [], ["data"])
    assert hybrid == npg
    assert hybrid["loss"] == {"use": "hybrid_npg"}
    assert replay["loss"] == {"use": "dyna", "experience": "replayed", "gamma": 1.0}
    assert hybrid["environment_steps"] == replay["environment_steps"] == 2000
    assert STAGES["data"].exploration.options["epsilon"] == 1 / STAGES["data"].env.horizon
