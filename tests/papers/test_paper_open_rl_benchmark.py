"""Open RL Benchmark: a run is repeated from its record alone, other versions are refused, the table needs no training.

Not shown: 25,000 runs of many libraries, and a server that shares them.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from flows.planning.locking import lock_path, lock_recipe, verify_lock
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from flows.runs.start import make_result_tables
from learning.control.policies.playing import play
from learning.lookup import bind
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.recipe.load import load_recipe
from schemas.stages.control import Control
from tasks import benchmark, control
from tasks.context import Context

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "open-rl-benchmark.yaml"
STAGES = load_recipe(RECIPE).stages
SMALL = ["vars.seeds=[1, 2]", "stages.runs.environment_steps=1100", "stages.runs.rollout_steps=16"]
SMALL += ["stages.runs.batch_size=16", "stages.runs.learning_starts=1000", "stages.returns.episodes=3"]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """A run of the recipe with few steps, in a folder of its own."""
    layout = Layout(tmp_path_factory.mktemp("tracked"))
    done = run_plan(plan_recipe(RECIPE, layout, overrides=SMALL), layout, executor="inprocess", prefect=False)
    assert done.exit_code == 0, done.states
    return layout, done


@pytest.fixture(scope="module")
def tracked(outcome):
    """The folders of the run's artifacts by step."""
    layout, _ = outcome
    found = [path.parent for path in (layout.root / ".posttrain/artifacts").glob("*/manifest.json")]
    return {json.loads((folder / "manifest.json").read_text())["step"]: folder for folder in found}


def read_manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def read_curve(folder):
    """Every point of a run's curves but the time."""
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in point.items() if name != "time"} for point in points]


@pytest.mark.parametrize("step", ["runs@algorithm=dqn,seed=2", "runs@algorithm=ppo,seed=1"])
def test_a_run_is_repeated_from_its_record_alone(step, tracked, tmp_path):
    """Settings and seed of the manifest give the same curves, the same weights and the same returns of all episodes."""
    record = read_manifest(tracked[step])
    stage = Control.model_validate(record["identity"]["settings"])
    context = Context({}, tmp_path, tmp_path / "checkpoints", seed=record["seed"])
    control.run(stage, context)
    assert read_curve(tmp_path) == read_curve(tracked[step])
    assert len(read_curve(tmp_path)) >= 4
    for file in ("actor.safetensors", "networks.safetensors"):
        assert (tmp_path / "outputs/model" / file).read_bytes() == (tracked[step] / "outputs/model" / file).read_bytes()
    from learning.control.policies.policy import load_control_policy

    policy = load_control_policy(tmp_path / "outputs/model")
    again = play(bind(stage.env, "env"), policy.actor, range(3), 1, "report")
    kept = pq.read_table(tracked["returns"] / "outputs/report/samples.parquet").to_pylist()
    assert [row["score"] for row in kept if row["model"] == step] == again.tolist()


def test_the_terminal_prints_the_table_after_the_evaluation(outcome):
    """One line for each number of a method; the run of 60 trainings had printed all evaluations and not the table."""
    *_, table = make_result_tables(outcome[1])
    assert table.title.startswith("table")
    lines = [
        tuple(str(cell) for cell in cells) for cells in zip(*(column.cells for column in table.columns), strict=True)
    ]
    assert [line[:2] for line in lines] == [
        *(("algorithm=dqn", "iqm_mean_return"), ("algorithm=ppo", "iqm_mean_return")),
        *(("algorithm=dqn", "mean_return"), ("algorithm=ppo", "mean_return")),
        ("algorithm=ppo", "better_than_algorithm=dqn"),
    ]
    assert all(line[2] for line in lines)


def test_the_record_has_everything_and_seeds_differ(tracked):
    runs = {name: read_manifest(folder) for name, folder in tracked.items() if name.startswith("runs@")}
    assert set(runs) == {f"runs@algorithm={a},seed={s}" for a in ("dqn", "ppo") for s in (1, 2)}
    for record in runs.values():
        assert {"torch", "torchrl", "gymnasium", "numpy"} <= set(record["versions"])
        assert record["machine"]
        assert record["cpu_seconds"] > 0
        assert "tasks.control" in record["identity"]["code"]
    first, second = (tracked[f"runs@algorithm=dqn,seed={seed}"] for seed in (1, 2))
    assert read_curve(first) != read_curve(second)
    assert {record["seed"] for record in runs.values()} == {1, 2}


def test_another_version_is_flagged_and_a_recipe_without_a_lock_is_refused(tmp_path):
    recipe = Path(shutil.copy(RECIPE, tmp_path))
    layout = Layout(tmp_path)
    plan = plan_recipe(recipe, layout)
    with pytest.raises(PlanError, match="posttrain lock"):
        verify_lock(plan, layout, (tmp_path,))
    assert list(lock_recipe(recipe, layout))
    verify_lock(plan, layout, (tmp_path,))
    lock = yaml.safe_load(lock_path(recipe).read_text())
    lock["packages"]["numpy"] = "0.0.1"
    lock_path(recipe).write_text(yaml.safe_dump(lock))
    with pytest.raises(PlanError, match=r"package numpy: 0\.0\.1"):
        verify_lock(plan, layout, (tmp_path,))


def tabulate(folder, values):
    """Run the recipe's table over a report with one value per run; return the lines by model and metric."""
    (folder / "report").mkdir()
    lines = [{"model": model, "family": "all", "metric": "mean_return", "value": v} for model, v in values.items()]
    (folder / "report/results.json").write_text(json.dumps({"table": lines}))
    result = benchmark.run(
        STAGES["table"], Context({"reports.world": folder / "report"}, folder, folder / "checkpoints", seed=0)
    )
    return {(x["model"], x["metric"]): x for x in result.details["table"] if x["family"] == "all"}


def test_the_table_needs_reports_alone(tmp_path):
    """Returns 1, 2 and 3 of three seeds: mean 2 of 3 runs; all 9 pairs are won, but for one tie that counts half."""
    values = {f"runs@algorithm=dqn,seed={s}": float(s) for s in (1, 2, 3)}
    values |= {f"runs@algorithm=ppo,seed={s}": float(s) for s in (3, 5, 4)}
    table = tabulate(tmp_path, values)
    mean = table["algorithm=dqn", "mean_return"]
    assert (mean["value"], mean["n"]) == (2.0, 3)
    assert mean["low"] == pytest.approx(1.0, abs=0.34)
    assert table["algorithm=ppo", "better_than_algorithm=dqn"]["value"] == pytest.approx(8.5 / 9)


def test_a_single_outlier_moves_the_mean_and_not_the_interquartile_mean(tmp_path):
    values = {f"runs@algorithm=dqn,seed={s}": float(s) for s in range(4)} | {"runs@algorithm=dqn,seed=9": 1e6}
    table = tabulate(tmp_path, values)
    assert table["algorithm=dqn", "iqm_mean_return"]["value"] == 2.0
    assert table["algorithm=dqn", "mean_return"]["value"] > 1e5


def test_runs_differ_in_algorithm_and_seed_alone():
    runs = {name: stage.model_dump() for name, stage in STAGES.items() if name.startswith("runs@")}
    assert len(runs) == 6
    assert {run["environment_steps"] for run in runs.values()} == {2048}
    assert {(run["algorithm"], run["seed"]) for run in runs.values()} == {
        (a, s) for a in ("dqn", "ppo") for s in (1, 2, 3)
    }
    assert dict(STAGES["returns"].models) == {name: name for name in runs}
    assert np.unique([run["env"]["id"] for run in runs.values()]).tolist() == ["CartPole-v1"]
