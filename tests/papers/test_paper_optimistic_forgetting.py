"""Safe learning: no task reward in the collection, unsafe actions are replaced, forgetting changes rows and no more.

Not shown: the rule of forgetting itself, which the abstract does not define.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control import training
from learning.control.policies.safe_sets import (
    choose_rows,
    fit_safe_set,
    label_safety,
    load_safe_set,
    predict_safety,
    replace_unsafe,
    reward_diversity,
)
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import Transitions, read_transitions, write_transitions
from learning.lookup import bind
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.collect import Collect
from schemas.stages.python import Python
from tasks import collect, control, python
from tasks.context import Context

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes/papers/optimistic-forgetting.yaml")
STAGES = RECIPE.stages
SPACES = Spaces(2, 2, (-1.0, -1.0), (1.0, 1.0), (2,))
SHORT = {"environment_steps": 50, "learning_starts": 20, "batch_size": 16}


def make_steps(episode, terminated, observation=None):
    """Steps of episodes with these numbers, at these places; actions are 0."""
    count = len(episode)
    place = np.zeros((count, 2), np.float32) if observation is None else np.array(observation, np.float32)
    ends = np.append(np.diff(episode) != 0, True)
    flags = np.array(terminated, bool)
    step = np.concatenate([np.arange((np.array(episode) == e).sum()) for e in np.unique(episode)])
    nothing = np.zeros((count, 2), np.float32)
    return Transitions(SPACES, np.array(episode), step, place, nothing, np.zeros(count), place, flags, ends & ~flags)


def train(name, folder, monkeypatch, reward, **settings):
    """Train a short arm in which the world pays `reward`; return the bytes of its networks."""
    step = training.Worlds.step

    def pay(self, action):
        steps = step(self, action)
        return replace(steps, reward=np.full_like(steps.reward, reward))

    monkeypatch.setattr(training.Worlds, "step", pay)
    folder.mkdir()
    stage = STAGES[name].model_copy(update={**SHORT, **settings})
    control.run(stage, Context({}, folder, folder / "c", seed=1))
    monkeypatch.setattr(training.Worlds, "step", step)
    return (folder / "outputs/model/networks.safetensors").read_bytes()


def test_a_task_reward_that_is_not_a_number_changes_nothing_in_the_collection(tmp_path, monkeypatch):
    nothing, broken = (train("explorer", tmp_path / str(r), monkeypatch, r) for r in (0.0, float("nan")))
    assert nothing == broken
    paid = [train("first", tmp_path / f"f{r}", monkeypatch, r, exploration=None) for r in (0.0, 1.0)]
    assert paid[0] != paid[1]


def test_diversity_is_the_distance_to_the_nearest_kept_observations():
    """Five kept points at distances 1 to 5 and one at 100: log(1 + 3) by the nearest five; 1 while there are fewer."""
    kept = np.array([[n, 0.0] for n in (1, 2, 3, 4, 5, 100)])
    here = np.zeros((1, 2))
    assert reward_diversity(here, kept)["reward"].tolist() == pytest.approx([np.log(4)])
    assert reward_diversity(here, kept, nearest=2)["reward"].tolist() == pytest.approx([np.log(2.5)])
    assert reward_diversity(here, kept[:4])["reward"].tolist() == [1.0]
    assert STAGES["explorer"].relabel.use == "reward_diversity"


def test_the_kept_observations_are_those_of_the_buffer(tmp_path, monkeypatch):
    seen = []

    def watch(next_observation_NO, kept_KO):
        seen.append(len(kept_KO))
        return {"reward": np.zeros(len(next_observation_NO))}

    monkeypatch.setattr("learning.control.policies.safe_sets.reward_diversity", watch)
    train("explorer", tmp_path / "run", monkeypatch, 0.0)
    assert seen == list(range(50))


def make_known(logits_of_x):
    """A network whose logit is a multiple of the action's first number: safe to the right."""

    class Known(torch.nn.Module):
        def forward(self, point):
            return logits_of_x(point[:, 2:3])

    return Known()


def test_a_predicted_safety_of_nine_tenths_passes_and_of_two_tenths_is_replaced():
    """Logits of .9 and .2 at actions 1 and −1; the fallback is the safest of those that are drawn."""

    def logits(x):
        high, low = torch.logit(torch.tensor(0.9)), torch.logit(torch.tensor(0.2))
        return low + (high - low) * (x + 1) / 2

    network, rng = make_known(logits), np.random.default_rng(0)
    shown, actions = np.zeros((2, 2), np.float32), np.array([[1.0, 0.3], [-1.0, 0.3]], np.float32)
    assert predict_safety(network, shown, actions) == pytest.approx([0.9, 0.2], abs=1e-6)
    made = replace_unsafe(network, shown, actions, SPACES, rng, threshold=0.5, candidates=64)
    assert np.array_equal(made[0], actions[0])
    drawn = np.random.default_rng(0).uniform(SPACES.low, SPACES.high, (64, 2)).astype(np.float32)
    assert np.array_equal(made[1], drawn[drawn[:, 0].argmax()])
    assert np.array_equal(replace_unsafe(network, shown, actions, SPACES, rng, threshold=0.1, candidates=4), actions)
    assert STAGES["first"].exploration.options["threshold"] == 0.5


def test_steps_within_the_horizon_of_a_violation_are_unsafe_in_its_episode_alone():
    """Episode 0 violates at its last step, 1 is cut off, 2 violates at once: with a horizon of 2, steps 1, 2 and 5."""
    given = make_steps([0, 0, 0, 1, 1, 2], [0, 0, 1, 0, 0, 1])
    assert label_safety(given, 2).tolist() == [True, False, False, True, True, False]
    assert label_safety(given, 1).tolist() == [True, True, False, True, True, False]
    assert label_safety(given, 9).tolist() == [False, False, False, True, True, False]
    assert {STAGES[name].function.options["horizon"] for name in ("safe_set", "remembered", "forgotten")} == {2}


def test_forgetting_chooses_rows_and_nothing_else():
    """The warning at (0, 0) is contradicted by a later safe step at (.1, 0); violations, and one at (1, 1), are not."""
    places = [(0, 0), (0.2, 0), (1, 1), (1.2, 1), (0.1, 0), (0.2, 0)]
    given = make_steps([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 0], places)
    safe = label_safety(given, 2)
    assert safe.tolist() == [False, False, False, False, True, True]
    assert choose_rows(given, safe, "none", 0.3).tolist() == [True] * 6
    assert choose_rows(given, safe, "optimistic", 0.3).tolist() == [False] + [True] * 5
    assert choose_rows(given, safe, "optimistic", 0.05).tolist() == [True] * 6
    earlier = make_steps([0, 0, 1, 1], [0, 0, 0, 1], [(0.1, 0), (0.2, 0), (0, 0), (0.2, 0)])
    assert choose_rows(earlier, label_safety(earlier, 2), "optimistic", 0.3).all()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Random steps of the recipe."""
    folder = tmp_path_factory.mktemp("pond")
    context = Context({}, folder / "random", folder / "c", seed=1)
    context.folder.mkdir()
    collect.run(STAGES["random"].model_copy(update={"environment_steps": 1500}), context)
    return context.output("transitions")


def fit(name, data, folder, **options):
    given = STAGES[name].model_dump(exclude_unset=True)
    stage = Python.model_validate({**given, "function": {**given["function"], **options}})
    context = Context({"inputs.random": data}, folder, folder / "c", seed=1)
    folder.mkdir()
    metrics = python.run(stage, context).metrics
    return metrics, context.output("result")


def test_forgetting_changes_which_rows_are_fitted_alone(data, tmp_path, monkeypatch):
    """The optimistic set is, bit by bit, the other one if that has the same rows."""
    given = read_transitions(data)
    metrics, optimistic = fit("forgotten", data, tmp_path / "optimistic", steps=60)
    kept = choose_rows(given, label_safety(given, 2), "optimistic", 0.3)
    assert (metrics["rows"], metrics["forgotten"]) == (int(kept.sum()), int((~kept).sum()))
    assert metrics["forgotten"] > 0
    assert metrics["unsafe"] == int((~label_safety(given, 2) & kept).sum())
    remembered, all_rows = fit("remembered", data, tmp_path / "none", steps=60)
    assert (remembered["rows"], remembered["forgotten"]) == (1500, 0)
    monkeypatch.setattr("learning.control.policies.safe_sets.choose_rows", lambda *_: kept)
    _, same_rows = fit("remembered", data, tmp_path / "same", steps=60)
    weights = [(one / "safe_set.safetensors").read_bytes() for one in (optimistic, same_rows, all_rows)]
    assert weights[0] == weights[1] != weights[2]
    shown = STAGES["remembered"].function.model_dump(), STAGES["forgotten"].function.model_dump()
    assert {**shown[0], "forget": "optimistic"} == shown[1]
    assert [port.steps for port in RECIPE.ports("remembered")] == [port.steps for port in RECIPE.ports("forgotten")]


def test_a_fitted_set_knows_the_way_into_the_pond(data, tmp_path):
    metrics, folder = fit("safe_set", data, tmp_path / "set")
    assert metrics["accuracy"] > 0.85
    network = load_safe_set(folder)
    beside = np.array([[-0.6, 0.0], [-0.6, 0.0], [-1.3, 0.0]], np.float32)
    safety = predict_safety(network, beside, np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]], np.float32))
    assert safety[0] < 0.5 < safety[1]
    assert safety[2] > 0.5


def test_gated_random_steps_violate_less(data, tmp_path):
    _, folder = fit("safe_set", data, tmp_path / "set")
    gate = {**STAGES["first"].exploration.model_dump(), "safe_set": str(folder)}
    ended = []
    for n, exploration in enumerate((None, gate)):
        settings = {**STAGES["random"].model_dump(exclude_unset=True), "environment_steps": 600}
        context = Context({}, tmp_path / str(n), tmp_path / "c", seed=2)
        context.folder.mkdir()
        collect.run(Collect.model_validate({**settings, "exploration": exploration}), context)
        ended.append(int(read_transitions(context.output("transitions")).terminated.sum()))
    assert ended[1] < ended[0] / 3


def test_data_without_violations_and_a_foreign_folder_are_refused(tmp_path):
    (tmp_path / "data").mkdir()
    write_transitions(tmp_path / "data", make_steps([0, 0], [0, 0]))
    with pytest.raises(StepError, match="steps into violations"):
        fit_safe_set(Context({"random": tmp_path / "data"}, tmp_path / "x", tmp_path / "y", seed=1))
    with pytest.raises(StepError, match="fit_safe_set"):
        load_safe_set(tmp_path)


def test_who_enters_the_pond_ends_there_and_the_goal_pays_by_the_step():
    worlds = [bind(STAGES[name].env, "env")() for name in ("returns", "violations")]
    for world in worlds:
        world.reset(seed=0)
        world.place = np.array([-0.6, 0.0])
    (earned, over), counted = (world.step(np.array([1.0, 0.0]))[1:3] for world in worlds)
    assert (earned, over, counted) == (pytest.approx(0.02), True, (1.0, True))
    for world in worlds:
        world.reset(seed=0)
        world.place = np.array([0.8, 1.0])
    (earned, over), counted = (world.step(np.array([1.0, 0.0]))[1:3] for world in worlds)
    assert (earned, over, counted) == (pytest.approx(0.02 + 1 / 30), False, (0.0, False))


def test_the_arms_differ_in_the_safe_set_alone():
    none, optimistic, ungated = (STAGES[name].model_dump() for name in ("none", "optimistic", "ungated"))
    assert none.pop("exploration")["safe_set"] == "remembered"
    assert optimistic.pop("exploration")["safe_set"] == "forgotten"
    assert none == optimistic
    assert (none.pop("model"), ungated.pop("model")) == ("first", "ungated_first")
    assert ungated.pop("exploration") is None
    assert none == ungated
    first, other = (STAGES[name].model_dump(exclude={"exploration"}) for name in ("first", "ungated_first"))
    assert first == other
    for name in ("returns", "violations"):
        gated = {key: use.options for key, use in STAGES[name].policies.items()}
        assert [(options["policy"], options["safe_set"]) for options in gated.values()] == [
            ("none", "remembered"),
            ("optimistic", "forgotten"),
        ]
        assert list(STAGES[name].models) == ["ungated", "none", "optimistic"]
    sources = [port.steps[0] for port in RECIPE.ports("safe_set")]
    assert sources == ["random", "found"]
    assert STAGES["found"].model == "explorer"
