"""A process that asks ahead is killed outright; what goes on from its checkpoint ends as one that was left alone."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from schemas.stages.rl import Rl
from tasks.context import Context
from tasks.rl import run
from tests.waiting import wait_for

HOUSE = Path(__file__).resolve().parents[2]
LIMIT = 400
"""Seconds after which a process that should have come somewhere is taken for hanging."""
CHILD = """
import json, sys
from pathlib import Path
from schemas.stages.rl import Rl
from tasks.context import Context
from tasks.rl import run

said = json.loads(sys.argv[1])
inputs = {name: Path(path) for name, path in said["inputs"].items()}
folder, checkpoints = Path(said["folder"]), Path(said["checkpoints"])
run(Rl.model_validate(said["stage"]), Context(inputs, folder, checkpoints, seed=3))
"""


def stage(drive):
    return {
        "kind": "rl",
        "model": "m",
        "prompts": "p",
        "rewards": [{"use": "formats.matches", "pattern": "a"}],
        "generation_batch_size": 12,
        "num_generations": 3,
        "max_completion_length": 8,
        "max_steps": 200,
        "max_sampled_tokens": 1500,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "advantage": ["center"],
        "ratio": "decoupled",
        "importance_correction": [{"use": "token", "high": 2.0}],
        "policy_loss": "clipped",
        "loss_aggregation": "token_mean",
        "rollout": drive,
    }


def killed(settings, inputs, folder, checkpoints):
    """Begin the stage in a process of its own, and kill it once it has left its second checkpoint."""
    spec = {"stage": settings, "inputs": {k: str(v) for k, v in inputs.items()}}
    spec |= {"folder": str(folder), "checkpoints": str(checkpoints)}
    environment = {**os.environ, "PYTHONPATH": str(HOUSE), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", CHILD, json.dumps(spec)], env=environment, cwd=folder)
    wait_for((checkpoints / "step-00000004").is_dir, LIMIT, alive=lambda: process.poll() is None)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait(LIMIT)


def made(settings, inputs, root, name, checkpoints):
    folder = root / name
    folder.mkdir()
    run(Rl.model_validate(settings), Context(inputs, folder, checkpoints, seed=3))
    return folder / "outputs"


@pytest.mark.slow
@pytest.mark.parametrize("drive", ["one_step_off", "periodic", {"use": "streamed", "max_staleness": 3}], ids=str)
def test_a_killed_process_loses_nothing(inputs, tmp_path, drive):
    settings = stage(drive)
    for name in ("first", "broken", "untouched"):
        (tmp_path / name).mkdir()
    killed(settings, inputs, tmp_path / "first", tmp_path / "broken")
    again = made(settings, inputs, tmp_path, "again", tmp_path / "broken")
    whole = made(settings, inputs, tmp_path, "whole", tmp_path / "untouched")
    if drive in ("one_step_off", "periodic"):
        for file in ("model/model.safetensors", "trajectories/trajectories.parquet"):
            assert (again / file).read_bytes() == (whole / file).read_bytes()
        return
    rows = pq.read_table(again / "trajectories" / "trajectories.parquet").to_pylist()
    # Every iteration trains on what its plan asked for, as often as in a run that was left alone.
    steps = 1 + max(row["step"] for row in rows)
    per_step = [Counter(r["prompt_id"] for r in rows if r["step"] == step) for step in range(steps)]
    other = pq.read_table(whole / "trajectories" / "trajectories.parquet").to_pylist()
    for step in range(min(steps, 1 + max(row["step"] for row in other))):
        assert per_step[step] == Counter(r["prompt_id"] for r in other if r["step"] == step)
    assert all(0 <= r["step"] - r["version"] <= 3 for r in rows)
