"""Kind collect with `dataset`: data sets of Minari and tables as transitions, and what does not fit is named."""

import json

import gymnasium
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from minari import MinariDataset
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from pydantic import ValidationError
from rich.console import Console

from flows.planning.recipe_plan import plan_recipe
from flows.publishing.transitions_export import export_minari
from flows.runs.start import start_run
from learning.control.stepping.minari_files import write_minari
from learning.control.stepping.transitions import COLUMNS, read_transitions
from lineage.layout import Layout
from schemas.errors import PlanError, StepError
from schemas.stages.collect import Collect
from tasks import collect, recorded_steps
from tasks.context import Context

LINE, CORRIDOR, PARTS = "tests.control_worlds:line", "tests.control_worlds:corridor", f"{__name__}:parts"


class Parts(gymnasium.Env):
    """A world whose observations have parts."""

    observation_space = Dict({"place": Discrete(3), "speed": Box(-1, 1, (2,), np.float32)})
    action_space = Box(-2, 2, (1,), np.float32)


def parts() -> gymnasium.Env:
    """Return a world whose observations have parts."""
    return Parts()


@pytest.fixture
def execute(tmp_path):
    def execute(module, name="step", inputs=None, **settings):
        stage = Collect.model_validate({"kind": "collect", **settings})
        context = Context(inputs or {}, tmp_path / name, tmp_path / name / "checkpoints", seed=3)
        context.folder.mkdir(exist_ok=True)
        result = module.run(stage, context)
        return read_transitions(context.output("transitions")), result.metrics

    return execute


@pytest.fixture
def read(execute):
    """Read a data set as the task does."""

    def read(folder, env=LINE, name="read", **settings):
        return execute(recorded_steps, name, {"dataset": folder}, env=env, dataset="path:./data", **settings)

    return read


@pytest.fixture
def table(tmp_path):
    """Write rows as JSON lines."""

    def write(rows, name="log.jsonl"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / "data"

    return write


def assert_equal(one, other):
    assert one.spaces == other.spaces
    for name in ("episode", *COLUMNS):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert ours.dtype == theirs.dtype, name
        assert np.array_equal(ours, theirs), name


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
@pytest.mark.parametrize("env", [LINE, CORRIDOR])
def test_what_is_written_for_minari_is_read_back_bit_identical_and_by_minari(env, data_format, execute, read, tmp_path):
    """The corridor's choices begin with 1, and its observations are numbers of cells."""
    made, metrics = execute(collect, env=env, policy="random", episodes=7)
    assert write_minari(made, tmp_path / "out", "lab/walks-v0", data_format) == 7
    back, again = read(tmp_path / "out", env)
    assert_equal(back, made)
    assert again == metrics
    theirs = MinariDataset(tmp_path / "out/data")
    assert (theirs.total_episodes, theirs.total_steps, theirs.id) == (7, len(made), "lab/walks-v0")
    first = theirs[0]
    rows = made.episode == 0
    assert np.array_equal(first.observations[:-1], made.observation[rows])
    assert np.array_equal(
        first.actions.reshape(rows.sum(), -1)[:, 0], made.action[rows].reshape(rows.sum(), -1)[:, 0] + made.spaces.start
    )
    assert list(first.rewards) == list(made.reward[rows])
    assert read(tmp_path / "out/data", env, "inner")[1] == metrics


def test_episodes_of_minari_whose_observations_have_parts_are_flattened_as_gymnasium_does(read, tmp_path):
    (tmp_path / "data").mkdir()
    storage = MinariStorage.new(tmp_path / "data", Parts.observation_space, Parts.action_space)
    place, speed = np.array([0, 2, 1]), np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], np.float32)
    buffer = EpisodeBuffer(
        observations={"place": place, "speed": speed},
        actions=np.array([[1.5], [-2.0]], np.float32),
        rewards=[0.25, 0.5],
        terminations=[False, True],
        truncations=[False, False],
        infos={},
    )
    storage.update_metadata({"dataset_id": "lab/parts-v0"})
    storage.update_episodes([buffer])
    back, _ = read(tmp_path / "data", PARTS)
    flat = [
        gymnasium.spaces.flatten(Parts.observation_space, {"place": p, "speed": s})
        for p, s in zip(place, speed, strict=True)
    ]
    assert np.array_equal(back.observation, np.float32(flat[:2]))
    assert np.array_equal(back.next_observation, np.float32(flat[1:]))
    assert (back.action.tolist(), back.reward.tolist()) == ([[1.5], [-2.0]], [0.25, 0.5])
    assert (back.terminated.tolist(), back.truncated.tolist()) == ([False, True], [False, False])


ROWS = [
    {"episode": "a", "observation": [0.0], "action": [0.5], "reward": 1, "terminated": False},
    {"episode": "a", "observation": [1.0], "action": [-0.5], "reward": 2, "terminated": True},
    {"episode": "b", "observation": [3.0], "action": [0.25], "reward": -4, "next_observation": [5.0]},
]
"""An episode that ends, and one that is cut."""


def test_a_table_has_a_row_per_step_and_the_next_observation_is_that_of_the_next_row(read, table, tmp_path):
    back, metrics = read(table(ROWS))
    assert (back.episode.tolist(), back.step.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert back.observation[:, 0].tolist() == [0.0, 1.0, 3.0]
    assert back.next_observation[:, 0].tolist() == [1.0, 1.0, 5.0]
    assert (back.terminated.tolist(), back.truncated.tolist()) == ([False, True, False], [False, False, True])
    assert metrics == {"steps": 3, "episodes": 2, "mean_return": -0.5, "min_return": -4.0, "max_return": 3.0}
    (tmp_path / "parquet").mkdir()
    pq.write_table(
        pa.Table.from_pylist([{**dict.fromkeys(ROWS[2]), **row} for row in ROWS]), tmp_path / "parquet/log.parquet"
    )
    assert_equal(read(tmp_path / "parquet", name="other")[0], back)


def test_choices_of_a_table_are_numbers_as_the_env_has_them(read, table):
    rows = [{"episode": 1, "observation": cell, "action": 2, "reward": 0, "terminated": cell == 3} for cell in (2, 3)]
    back, _ = read(table(rows), CORRIDOR)
    assert back.action.tolist() == [1, 1]  # from 0 here, from 1 in the corridor
    assert back.observation.tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]


def test_the_first_episodes_or_steps_are_read(read, table):
    assert read(table(ROWS), episodes=1)[1]["steps"] == 2
    cut, metrics = read(table(ROWS), environment_steps=1, name="cut")
    assert (metrics["steps"], cut.truncated.tolist(), cut.next_observation.tolist()) == (1, [True], [[1.0]])
    for asked in ({"episodes": 3}, {"environment_steps": 4}):
        with pytest.raises(StepError, match="it has 2 episodes of 3 steps, and"):
            read(table(ROWS), name="more", **asked)


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (1, {"observation": [float("nan")]}, "log.jsonl: episode a, step 1: `observation` is not finite"),
        (0, {"reward": None}, "log.jsonl: episode a, step 0: `reward` is empty"),
        (1, {"action": [1.5]}, "episode a, step 1: `action` is outside the env's bounds"),
        (0, {"terminated": True}, "episode a, step 0: the episode has ended, and more of its steps follow"),
        (
            1,
            {"terminated": False},
            "episode a does not end with `terminated`, so its last row needs a `next_observation`",
        ),
        (0, {"observation": [0.0, 1.0]}, "log.jsonl: episode a: its columns do not fit the env"),
        (
            2,
            {"next_observation": [1.0, 2.0]},
            r"episode b: `next_observation` has the shape \(2,\), and that of the env",
        ),
        (2, {"action": "left"}, "log.jsonl cannot be read|do not fit the env"),
    ],
)
def test_a_step_that_the_env_could_not_have_had_is_named(place, change, message, read, table):
    rows = [row | change if number == place else row for number, row in enumerate(ROWS)]
    with pytest.raises(StepError, match=message):
        read(table(rows))


def test_files_that_are_no_data_set_are_refused_by_name(read, table, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(StepError, match=r"neither a data set of Minari .* nor a table"):
        read(tmp_path / "empty")
    with pytest.raises(StepError, match=r"log\.jsonl has no column reward; it has"):
        read(table([{"episode": 1, "observation": [0.0], "action": [0.0]}]))
    with pytest.raises(StepError, match="the env's actions are whole numbers"):
        read(table([{"episode": 1, "observation": 2, "action": 1.5, "reward": 0, "terminated": True}]), CORRIDOR)


def test_data_sets_of_another_world_or_without_spaces_or_damaged_are_refused(execute, read, tmp_path):
    made, _ = execute(collect, env=LINE, policy="random", episodes=2)
    write_minari(made, tmp_path / "out", "lab/walks-v0", "hdf5")
    with pytest.raises(StepError, match="dataset"):
        read(tmp_path / "out", CORRIDOR)
    metadata = tmp_path / "out/data/metadata.json"
    whole = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({k: v for k, v in whole.items() if k != "action_space"} | {"env_spec": "{}"}))
    with pytest.raises(StepError, match="has no `observation_space` and `action_space`"):
        read(tmp_path / "out")
    metadata.write_text("{")
    with pytest.raises(StepError, match="no readable data set of Minari"):
        read(tmp_path / "out")
    metadata.write_text(json.dumps(whole))
    with h5py.File(tmp_path / "out/data/main_data.hdf5", "r+") as file:
        del file["episode_1/observations"]
        file["episode_1/observations"] = np.zeros((1, 1), np.float32)
    with pytest.raises(StepError, match=r"an episode of .* steps has 1 observations"):
        read(tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "random"}, "give one of `model`"),
        ({"dataset": None}, "give one of `model`"),
        ({"exploration": {"use": "gaussian"}}, "`exploration` changes how a policy acts"),
        ({"num_envs": 2}, "`num_envs` changes how a policy acts"),
        ({"episodes": 1, "environment_steps": 1}, "or neither for the whole `dataset`"),
    ],
)
def test_settings_of_a_policy_that_acts_do_not_go_with_a_dataset(change, message):
    with pytest.raises(ValidationError, match=message):
        Collect.model_validate({"kind": "collect", "env": LINE, "dataset": "path:./data"} | change)


def test_a_recipe_trains_on_what_another_one_exported(tmp_path):
    """As a user: collect, export, train on the folder in another recipe; nothing runs twice unless the files change."""
    layout, quiet = Layout(tmp_path), Console(quiet=True)

    def run(name, stages):
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nseed: 1\nstages:\n{stages}")
        outcome = start_run(plan_recipe(tmp_path / f"{name}.yaml", layout), layout, "inprocess", quiet)
        return {step: (state.state, state.manifest) for step, state in outcome.states.items()}

    made = run("walks", f"  walk: {{kind: collect, env: '{LINE}', policy: random, episodes: 5}}\n")
    steps, episodes = export_minari(layout, "walk", tmp_path / "out")
    assert (steps, episodes) == (made["walk"][1].metrics["steps"], 5)
    learn = f"""\
  recorded: {{kind: collect, env: '{LINE}', dataset: path:./out}}
  cloned: {{kind: control, env: '{LINE}', algorithm: bc, data: [recorded], max_steps: 2, batch_size: 4}}
"""
    first = run("clones", learn)
    assert {state for state, _ in first.values()} == {"done"}
    assert first["recorded"][1].metrics == made["walk"][1].metrics
    assert {state for state, _ in run("clones", learn).values()} == {"cached"}
    with h5py.File(tmp_path / "out/data/main_data.hdf5", "r+") as file:
        file["episode_0/rewards"][0] += 1
    again = run("clones", learn)
    assert again["recorded"][0] == "done"
    assert again["recorded"][1].metrics["mean_return"] == pytest.approx(made["walk"][1].metrics["mean_return"] + 1 / 5)
    with pytest.raises(PlanError, match="has no transitions; name one of kind collect"):
        export_minari(layout, "cloned", tmp_path / "other")
    with pytest.raises(PlanError, match="exists already"):
        export_minari(layout, "walk", tmp_path / "out")
