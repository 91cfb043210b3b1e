"""Worlds of MiniGrid: what is observed, and a recipe that collects, learns and is evaluated in one."""

import gymnasium
import numpy as np
import pytest
from PIL import Image

from learning.control.stepping.spaces import read_spaces
from learning.control.worlds.mini_grids import list_missions, minigrid
from schemas.control import WorldUse
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import collect, control, recorded_control
from tasks.context import Context

library = pytest.importorskip("minigrid", reason="no MiniGrid: pip install 'posttrain[control]'")
LEFT, RIGHT, FORWARD = 0, 1, 2
WAY = [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD]
"""The shortest way through MiniGrid-Empty-5x5-v0."""
RECIPE = """schema_version: 1
name: tiny-minigrid
seed: 3
vars: {env: "minigrid:MiniGrid-Empty-5x5-v0"}
stages:
  way: {kind: collect, env: "${vars.env}", policy: "tests.learning.control.test_mini_grids:go", episodes: 4}
  cloned:
    kind: control
    env: "${vars.env}"
    algorithm: bc
    data: [way]
    networks: {hidden_sizes: [16]}
    learning_rate: 0.01
    batch_size: 16
    max_steps: 60
  report:
    kind: evaluate_control
    env: "${vars.env}"
    policies: {way: "tests.learning.control.test_mini_grids:go", ahead: "tests.learning.control.test_mini_grids:ahead"}
    models: {cloned: cloned}
    episodes: 3
    record: {max_side: 160}
"""


def go(observation_NO):
    """Go ahead until the wall is next, turn right once, and go ahead again, by what is seen in front (cell 3, 5)."""
    cells_NO = observation_NO[:, : 7 * 7 * 21].reshape(-1, 7, 7, 21)
    is_wall_N = cells_NO[:, 3, 5, library.core.constants.OBJECT_TO_IDX["wall"]] == 1
    return np.where(is_wall_N, RIGHT, FORWARD)


def ahead(observation_NO):
    return np.full(len(observation_NO), FORWARD)


def encode(seen, missions=()):
    """Return the numbers of an observation, by loops."""
    numbers = []
    width, height, _ = seen["image"].shape
    for x in range(width):
        for y in range(height):
            what, colour, state = (int(code) for code in seen["image"][x, y])
            numbers += [float(n == what) for n in range(11)]
            numbers += [float(n == colour) for n in range(6)]
            numbers += [float(n == state) for n in range(4)]
    numbers += [float(n == seen["direction"]) for n in range(4)]
    return numbers + [float(word == mission) for words, mission in missions for word in words]


@pytest.mark.parametrize("view", ["partial", "full"])
@pytest.mark.parametrize("name", ["MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-5x5-v0"])
def test_observations_are_the_cells_and_the_direction_one_hot(name, view):
    world, plain = minigrid(id=name, view=view), gymnasium.make(name)
    if view == "full":
        plain = library.wrappers.FullyObsWrapper(plain)
    rng = np.random.default_rng(0)
    for seed in range(3):
        assert world.reset(seed=seed)[0].tolist() == encode(plain.reset(seed=seed)[0])
        for _ in range(20):
            action = int(rng.integers(7))
            (shown, *rest), (seen, *expected) = world.step(action), plain.step(action)
            assert shown.tolist() == encode(seen)
            assert rest == expected
    assert world.observation_space.shape == ((7 * 7 if view == "partial" else 5 * 5) * 21 + 4,)
    assert shown.dtype == np.float32


def test_a_mission_is_one_hot_for_each_of_its_words():
    world, plain = minigrid(id="MiniGrid-Fetch-5x5-N2-v0"), gymnasium.make("MiniGrid-Fetch-5x5-N2-v0")
    syntax, colours, types = plain.observation_space["mission"].ordered_placeholders
    begins = dict(zip(("get a", "go get a", "fetch a", "go fetch a", "you must fetch a"), syntax, strict=True))
    missions = set()
    for seed in range(12):
        seen = plain.reset(seed=seed)[0]
        text = seen["mission"]
        begin, colour, what = text.rsplit(" ", 2)
        shown = world.reset(seed=seed)[0].tolist()
        assert shown == encode(seen, [(syntax, begins[begin]), (colours, colour), (types, what)])
        missions.add(text)
    assert len(missions) > 5
    without = minigrid(id="MiniGrid-Fetch-5x5-N2-v0", mission="none")
    assert without.reset(seed=11)[0].tolist() == encode(seen)
    assert len(list_missions(plain.observation_space["mission"], "")) == len(syntax) * len(colours) * len(types)


def test_the_way_to_the_goal_earns_what_minigrid_pays():
    world = minigrid(id="MiniGrid-Empty-5x5-v0")
    world.reset(seed=0)
    outcomes = [world.step(action)[1:4] for action in WAY]
    assert outcomes == [(0, False, False)] * 4 + [(1 - 0.9 * 5 / 100, True, False)]
    assert read_spaces(world).actions == 7


def test_a_recipe_collects_learns_and_is_evaluated_in_minigrid(tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "r.yaml")

    def run(task, name, **inputs):
        context = Context(inputs, tmp_path / name, tmp_path / name / "checkpoints", seed=3)
        context.folder.mkdir()
        return task.run(recipe.stages[name], context), context

    made, way = run(collect, "way")
    assert made.metrics["steps"] == 4 * len(WAY)
    assert made.metrics["mean_return"] == pytest.approx(0.955)
    _, cloned = run(control, "cloned", **{"data.0": way.output("transitions")})
    assert recipe.stages["report"].task_module == "recorded_control"
    made, report = run(recorded_control, "report", **{"models.cloned": cloned.output("model")})
    values = {line["model"]: line["value"] for line in made.details["table"]}
    assert values == pytest.approx({"way": 0.955, "ahead": 0.0, "cloned": 0.955})
    shown = {row["model"]: (row["steps"], row["frames"]) for row in made.details["recordings"]}
    assert shown == {"way": (5, 6), "ahead": (100, 51), "cloned": (5, 6)}
    for row in made.details["recordings"]:
        with Image.open(report.output("report") / row["file"]) as gif:
            assert gif.size == (160, 160)


def test_an_id_of_minigrid_names_its_function():
    read = WorldUse.model_validate("minigrid:MiniGrid-Empty-5x5-v0")
    assert (read.use, read.options) == ("minigrid", {"id": "MiniGrid-Empty-5x5-v0"})


def test_what_cannot_be_made_or_listed_is_refused_by_name():
    with pytest.raises(StepError, match="MiniGrid-Empty-5x6-v0 cannot be made"):
        minigrid(id="MiniGrid-Empty-5x6-v0")
    with pytest.raises(StepError, match="CartPole-v1 is none of MiniGrid's worlds"):
        minigrid(id="CartPole-v1")
    with pytest.raises(StepError, match=r"the missions of BabyAI-GoToLocal-v0 .* `mission: none`"):
        minigrid(id="BabyAI-GoToLocal-v0")
    world = minigrid(id="BabyAI-GoToLocal-v0", mission="none")
    assert world.observation_space.contains(world.reset(seed=1)[0])
