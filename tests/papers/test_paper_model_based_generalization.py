"""Model-based generalisation: a factored model teaches values of what the data lack; replay and whole counts do not.

Not shown: the theorem; neural models and values, ProcMaze.
"""

from pathlib import Path

import numpy as np
import pytest

from learning.control.buffers.buffer import fill_buffer
from learning.control.policies.policy import load_control_policy
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import read_transitions
from learning.control.tables.counts import count_steps, read_table
from learning.lookup import bind
from schemas.recipe.load import load_recipe
from tasks import collect, control, python
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/model-based-generalization.yaml").stages
ARMS = ("replay", "counted", "factored")
STATES, OMITTED = Spaces(8, 3), (0, 2)


def solve():
    """The best values (8, 3) of three switches at a discount of .9, by iteration over states written down here."""
    values = np.zeros((8, 3))
    for _ in range(400):
        for state in range(8):
            for action in range(3):
                after = state ^ (1 << action)
                earned = sum((i + 1) * (after >> i & 1) for i in range(3)) / 3
                values[state, action] = earned + 0.9 * values[after].max()
    return values


def run(kind, name, inputs, folder):
    folder.mkdir()
    context = Context(inputs, folder, folder / "c", seed=1)
    return folder / "outputs", kind.run(STAGES[name], context).metrics


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The data, the partial data, and each arm's policy with its metrics."""
    root = tmp_path_factory.mktemp("arms")
    data, _ = run(collect, "data", {}, root / "data")
    partial, left = run(python, "partial", {"inputs.transitions": data / "transitions"}, root / "partial")
    arms = {name: run(control, name, {"data.0": partial / "transitions"}, root / name) for name in ARMS}
    return data / "transitions", partial / "transitions", left, arms


def test_one_state_with_one_action_is_left_out_and_all_else_is_there(made):
    data, partial, left, _ = made
    counts = [count_steps(fill_buffer([read_transitions(one)]).save(), STATES) for one in (data, partial)]
    assert counts[1].visits_SA[OMITTED] == 0 < counts[0].visits_SA[OMITTED] == left["omitted"]
    assert left["steps"] == 600 - left["omitted"]
    counts[0].visits_SA[OMITTED] = 0
    assert np.array_equal(counts[0].visits_SA, counts[1].visits_SA)
    assert (np.delete(counts[1].visits_SA.ravel(), 2) > 0).all()


def test_replay_leaves_the_omitted_value_at_its_start_and_the_factored_model_is_exact(made):
    values = {name: read_table(load_control_policy(folder / "model").actor) for name, (folder, _) in made[3].items()}
    best, others = solve(), np.ones((8, 3), bool)
    others[OMITTED] = False
    assert values["replay"][OMITTED] == values["counted"][OMITTED] == 0
    assert np.abs(values["factored"] - best).max() < 1e-3
    assert np.abs(values["replay"] - best)[1:].max() > 0.02  # what leads through the omitted step has other values
    assert best[OMITTED] > 5


def test_all_arms_make_the_same_number_of_updates(made):
    assert {metrics["updates"] for _, metrics in made[3].values()} == {400 * 20}


def test_errors_are_measured_where_steps_are_missing_and_elsewhere(made, tmp_path):
    data, _, _, arms = made
    inputs = {"inputs.transitions": data} | {f"inputs.{name}": arms[name][0] / "model" for name in ARMS}
    _, metrics = run(python, "errors", inputs, tmp_path / "errors")
    best = solve()
    for name in ARMS:
        error = np.abs(read_table(load_control_policy(arms[name][0] / "model").actor) - best)
        assert metrics[f"omitted.{name}"] == pytest.approx(error[OMITTED], abs=1e-4)
        error[OMITTED] = 0
        assert metrics[f"elsewhere.{name}"] == pytest.approx(error.max(), abs=1e-4)
    assert metrics["omitted.factored"] < 1e-3 < metrics["omitted.counted"]


def draw(name, partial, count=6000):
    """Steps that an arm learns from."""
    loss = bind(STAGES[name].loss, "loss")
    kept = fill_buffer([read_transitions(partial)]).save()
    from learning.lookup import Inner

    experience = Inner(loss.options["experience"], 0, {})
    return experience(kept=kept, rng=np.random.default_rng(0), count=count, spaces=STATES)


@pytest.mark.parametrize(("name", "seen"), [("replay", 23), ("counted", 23), ("factored", 24)])
def test_what_is_drawn_is_right_and_only_the_factored_model_makes_up_the_omitted_step(name, seen, made):
    drawn = draw(name, made[1])
    pairs = set(zip(drawn.state_B.tolist(), drawn.action_B.tolist(), strict=True))
    assert len(pairs) == seen
    assert (OMITTED in pairs) == (name == "factored")
    assert np.array_equal(drawn.next_B, drawn.state_B ^ (1 << drawn.action_B))
    earned = (drawn.next_B[:, None] >> np.arange(3) & 1) @ np.array([1, 2, 3]) / 3
    assert drawn.reward_B == pytest.approx(earned, abs=1e-6)
    assert drawn.goes_on_B.all()


def test_a_model_draws_evenly_what_replay_draws_by_its_counts(made):
    visits = count_steps(fill_buffer([read_transitions(made[1])]).save(), STATES).visits_SA
    shares = {}
    for name in ARMS:
        drawn = draw(name, made[1], 24000)
        shares[name] = np.bincount(drawn.state_B * 3 + drawn.action_B, minlength=24) / 24000
    assert shares["replay"] == pytest.approx(visits.ravel() / visits.sum(), abs=0.01)
    assert shares["counted"] == pytest.approx((visits.ravel() > 0) / 23, abs=0.01)
    assert shares["factored"] == pytest.approx(np.full(24, 1 / 24), abs=0.01)


def test_the_arms_differ_in_their_experience_alone():
    arms = {name: STAGES[name].model_dump() for name in ARMS}
    uses = {name: arm["loss"].pop("experience") for name, arm in arms.items()}
    assert uses == {"replay": "replayed", "counted": "counted", "factored": {"use": "factored", "factors": 3}}
    assert arms["replay"] == arms["counted"] == arms["factored"]
    assert arms["replay"]["loss"] == {"use": "dyna", "gamma": 0.9, "updates": 20}
    assert (arms["replay"]["max_steps"], arms["replay"]["data"]) == (400, ["partial"])
    assert STAGES["partial"].function.options["omitted"] == STAGES["errors"].function.options["omitted"] == [[0, 2]]
