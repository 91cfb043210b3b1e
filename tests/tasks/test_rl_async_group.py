"""Asking ahead with a group of trainers: rank 0 holds what is under way, all ranks train on it."""

import importlib.util
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from learning.rl.monitoring import TIMED

SPEC = importlib.util.spec_from_file_location("task_groups", Path(__file__).with_name("test_task_groups.py"))
groups = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(groups)

ROLLOUTS = {
    "one_step_off": {"use": "one_step_off"},
    "paced": {"use": "streamed", "max_staleness": 2, "steps_per_update": 3},
}
ALGORITHM = {
    "advantage": ["center"],
    "ratio": "decoupled",
    "importance_correction": [{"use": "token", "high": 2.0}],
    "critic": None,
    "loss_terms": [],
    "num_mini_batches": 1,
}


def job(folder, drive, name, strategy=None, **more):
    """A job of the helper's, with a drive that asks ahead."""
    made = groups.job(folder, "rl", f"{name}-{drive}", strategy, **more)
    made["stage"] |= {**ALGORITHM, "rollout": ROLLOUTS[drive], "max_steps": 4}
    made["after"] = made["after"] and f"{more['after']}-{drive}-rl"
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """What one process made, and two ranks of both strategies; the second of them was also interrupted."""
    folder = tmp_path_factory.mktemp("ahead")
    groups.make_inputs(folder)
    groups.start(folder, [job(folder, drive, "alone") for drive in ROLLOUTS], "one", 1)
    both = [job(folder, drive, strategy, strategy) for drive in ROLLOUTS for strategy in ("ddp", "fsdp2")]
    both += [job(folder, drive, "cut", "ddp", stop=3) for drive in ROLLOUTS]
    both += [job(folder, drive, "continued", "ddp", after="cut") for drive in ROLLOUTS]
    groups.start(folder, both, "two", 2)
    return folder


def rows_of(place, name):
    return pq.read_table(place / name / "0" / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()


def curve(place, name):
    record = json.loads((place / name / "0" / "told.json").read_text())
    return [{key: value for key, value in line.items() if key not in TIMED} for line in record["curve"]]


@pytest.mark.slow
@pytest.mark.parametrize("drive", ROLLOUTS)
def test_two_ranks_train_on_what_one_process_asks_ahead(place, drive):
    alone = rows_of(place, f"alone-{drive}-rl")
    for strategy in ("ddp", "fsdp2"):
        both = rows_of(place, f"{strategy}-{drive}-rl")
        assert [r["token_ids"] for r in both] == [r["token_ids"] for r in alone]
        assert [r["version"] for r in both] == [r["version"] for r in alone]
        one, two = (groups.weights(place, f"{name}-{drive}-rl") for name in ("alone", strategy))
        groups.assert_close(one, two, 2e-5)
    assert {r["step"] - r["version"] for r in alone} > {0}


@pytest.mark.slow
@pytest.mark.parametrize("drive", ROLLOUTS)
def test_an_interrupted_group_resumes_bit_identical(place, drive):
    whole, again = f"ddp-{drive}-rl", f"continued-{drive}-rl"
    files = [json.loads((place / name / "0" / "told.json").read_text())["files"] for name in (whole, again)]
    assert files[0] == files[1]
    assert curve(place, whole) == curve(place, again)
