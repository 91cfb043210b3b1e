"""Compatible demonstrations: only what is familiar and contradicts is left out; as many at random are others.

Not shown: people, a robot, the choice of what a user is shown.
"""

from pathlib import Path

import numpy as np
import pytest

from learning.control.policies.policy import load_control_policy
from learning.control.reports.compatibility import compare_actions, load_members, measure_compatibility
from learning.control.stepping.spaces import read_spaces
from learning.control.stepping.transitions import Transitions, read_transitions, select_episodes
from learning.lookup import bind
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.collect import Collect
from schemas.stages.python import Python
from tasks import collect, control, python
from tasks.context import Context

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes/papers/compatible-demonstrations.yaml")
STAGES = RECIPE.stages
MEMBERS = [f"member@seed={seed}" for seed in range(1, 6)]
LIMITS = {"error_limit": 0.5, "spread_limit": 0.1}
SPACES = read_spaces(bind(STAGES["shown"].env, "env")())


def test_the_measure_by_hand():
    """(error .25, spread .05) gives .5, (1, .05) gives 0, (1, .5) gives 1, and so does an error of 0."""
    error, spread = np.array([0.25, 1.0, 1.0, 0.0, 0.3]), np.array([0.05, 0.05, 0.5, 0.05, 0.1])
    assert measure_compatibility(error, spread, **LIMITS).tolist() == [0.5, 0.0, 1.0, 1.0, 1.0]
    for name in ("chosen", "guided"):
        options = STAGES[name].function.options if name == "chosen" else STAGES[name].policy.options
        assert {key: options[key] for key in LIMITS} == LIMITS


def test_error_and_spread_are_those_of_the_ensemble():
    """Members act (1, 0) and (0, 0): their mean is (.5, 0), the deviations (.5, 0); the taken action is (0, 1)."""
    error, spread = compare_actions(np.array([[[1.0, 0.0]], [[0.0, 0.0]]]), np.array([[0.0, 1.0]]))
    assert error.tolist() == [(0.25 + 1.0) / 2]
    assert spread.tolist() == [0.25]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The recipe's demonstrations and its ensemble, with fewer episodes and updates."""
    folder = tmp_path_factory.mktemp("demonstrations")

    def run(name, task, stage, inputs=None):
        context = Context(inputs or {}, folder / name, folder / f"{name}-c", seed=stage.seed or 1)
        context.folder.mkdir()
        task.run(stage, context)

    for name in ("shown", "others", "elsewhere"):
        run(name, collect, STAGES[name].model_copy(update={"episodes": 8}))
    for name in MEMBERS:
        stage = STAGES[name].model_copy(update={"max_steps": 400})
        run(name, control, stage, {"data.0": folder / "shown/outputs/transitions"})
    return folder


def choose(folder, place, **options):
    inputs = {f"inputs.{name}": folder / name / "outputs/model" for name in MEMBERS}
    inputs |= {f"inputs.{name}": folder / name / "outputs/transitions" for name in ("others", "elsewhere")}
    context = Context(inputs, place, place / "c", seed=1)
    place.mkdir()
    given = STAGES["chosen"].model_dump(exclude_unset=True)
    stage = Python.model_validate({**given, "function": {**given["function"], **options}})
    return python.run(stage, context).metrics, context


def test_the_other_side_is_refused_and_what_is_new_is_kept(folder, tmp_path):
    metrics, context = choose(folder, tmp_path / "chosen")
    assert (metrics["kept.others"], metrics["kept.elsewhere"]) == (0, 8)
    assert metrics["compatibility.others"] < 0.8 <= metrics["compatibility.elsewhere"]
    assert (metrics["episodes"], metrics["kept"]) == (16, 8)
    kept, given = read_transitions(context.output("kept")), read_transitions(folder / "elsewhere/outputs/transitions")
    assert np.array_equal(kept.observation, given.observation)
    assert np.array_equal(kept.action, given.action)
    drawn = read_transitions(context.output("random"))
    starts = drawn.observation[drawn.step == 0]
    assert len(starts) == 8
    assert 0 < (np.abs(starts[:, 0]) < 0.2).sum() < 8


def test_the_mean_of_an_episodes_steps_decides(folder, tmp_path):
    """By the ensemble, step by step: the compatibility of each episode is the mean that the metrics report."""
    metrics, _ = choose(folder, tmp_path / "chosen")
    members = load_members([folder / name / "outputs/model" for name in MEMBERS])
    for name in ("others", "elsewhere"):
        given = read_transitions(folder / name / "outputs/transitions")
        acted = np.stack([member.act(np.array(given.observation), explore=False) for member in members])
        error = ((acted.mean(0) - given.action) ** 2).mean(1)
        fits = np.where(acted.std(0).mean(1) < 0.1, 1 - np.minimum(error / 0.5, 1), 1)
        means = [fits[given.episode == episode].mean() for episode in range(8)]
        assert metrics[f"compatibility.{name}"] == pytest.approx(np.mean(means), abs=1e-6)
        assert metrics[f"kept.{name}"] == sum(mean >= 0.8 for mean in means)


def test_the_ensemble_is_five_clones_of_the_first_operator_alone():
    members = [STAGES[name] for name in MEMBERS]
    assert {tuple(member.data) for member in members} == {("shown",)}
    assert sorted(member.seed for member in members) == [1, 2, 3, 4, 5]
    ports = [port.steps[0] for port in RECIPE.ports("chosen")]
    assert ports == [*MEMBERS, "others", "elsewhere"]
    guides = [port.steps[0] for port in RECIPE.ports("guided") if port.path.startswith("policy.members")]
    assert guides == MEMBERS


def test_a_guided_operator_does_as_the_ensemble_does_where_it_contradicts(folder, tmp_path):
    settings = STAGES["guided"].model_dump(exclude_unset=True)
    folders = [str(folder / name / "outputs/model") for name in MEMBERS]
    stage = Collect.model_validate({**settings, "episodes": 4, "policy": {**settings["policy"], "members": folders}})
    context = Context({}, tmp_path / "guided", tmp_path / "c", seed=1)
    context.folder.mkdir()
    collect.run(stage, context)
    made = read_transitions(context.output("transitions"))
    acted = np.stack([load_control_policy(Path(one)).act(np.array(made.observation), explore=False) for one in folders])
    own = bind(STAGES["others"].policy, "policy").ask(0, {"observation_NO": made.observation, "spaces": SPACES})
    error, spread = compare_actions(acted, own)
    told = (spread < 0.1) & (error > 0.25)
    assert told.any()
    assert not told.all()
    assert made.action == pytest.approx(np.where(told[:, None], acted.mean(0), own), abs=1e-5)
    assert settings["policy"]["operator"] == STAGES["others"].policy.model_dump(exclude_unset=True)


def test_operators_pass_on_their_side_and_reach_the_goal(folder):
    for name, side in (("shown", -1), ("others", 1), ("elsewhere", 1)):
        given = read_transitions(folder / name / "outputs/transitions")
        assert given.compute_returns().tolist() == [1.0] * 8
        beside = given.observation[np.abs(given.observation[:, 1]) < 0.2, 0]
        assert (side * beside > 0.35).all()
    assert read_transitions(folder / "elsewhere/outputs/transitions").observation[:, 0].max() > 1.4


def test_who_touches_the_pillar_ends_with_nothing():
    world = bind(STAGES["report"].env, "env")()
    world.reset(seed=0)
    world.place = np.array([0.0, -0.45])
    shown, reward, ended, *_ = world.step(np.array([0.0, 1.0]))
    assert (reward, ended) == (0.0, True)
    assert shown == pytest.approx([0.0, -0.3], abs=1e-6)


def test_nothing_compatible_and_too_few_members_are_refused(folder, tmp_path):
    with pytest.raises(StepError, match="no demonstration is compatible"):
        choose(folder, tmp_path / "strict", error_limit=1e-9, spread_limit=10.0)
    with pytest.raises(StepError, match="two policies"):
        load_members([folder / MEMBERS[0] / "outputs/model"])


def test_whole_episodes_are_selected():
    given = read_episodes()
    chosen = select_episodes(given, np.array([0, 2]))
    assert chosen.reward.tolist() == [0.0, 1.0, 4.0]
    assert chosen.episode.tolist() == [0, 0, 2]


def read_episodes():
    """Episodes of 2, 2 and 1 steps whose rewards number the steps."""
    nothing, flags = np.zeros((5, 2), np.float32), np.zeros(5, bool)
    episode, step = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 0])
    return Transitions(SPACES, episode, step, nothing, nothing, np.arange(5.0), nothing, flags, flags)


def test_the_clones_differ_in_the_demonstrations_alone():
    data = {
        "base": ["shown"],
        "all": ["shown", "others", "elsewhere"],
        "compatible": ["shown", "chosen.kept"],
        "drawn": ["shown", "chosen.random"],
        "elicited": ["shown", "guided"],
    }
    arms = {name: STAGES[name].model_dump() for name in data}
    assert {name: arm.pop("data") for name, arm in arms.items()} == data
    assert all(arm == arms["base"] for arm in arms.values())
    assert list(STAGES["report"].models) == ["base", "all", "drawn", "elicited", "compatible"]
    assert [use.options for use in STAGES["report"].other_envs] == [STAGES["elsewhere"].env.options]
