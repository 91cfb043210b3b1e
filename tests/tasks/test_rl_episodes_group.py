"""Episodes with a group of trainers: every rank plays its share, and the group learns what one process learns."""

import importlib.util
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

SPEC = importlib.util.spec_from_file_location("task_groups", Path(__file__).with_name("test_task_groups.py"))
groups = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(groups)

PLAYED = {
    "env": {"use": "episode_world:Environment", "max_turns": 4},
    "rewards": ["environment.earned"],
    "logits_processors": ["episode_world:short"],
    "max_completion_length": 30,
    "advantage": ["center"],
    "critic": None,
    "num_mini_batches": 1,
    "max_steps": 3,
}


def job(folder, name, strategy=None, **more):
    """A job of the helper's, in an environment."""
    made = groups.job(folder, "rl", name, strategy, **more)
    made["stage"] |= PLAYED
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """What one process made, and what two ranks did, one of whose runs was interrupted."""
    folder = tmp_path_factory.mktemp("played")
    groups.make_inputs(folder)
    groups.start(folder, [job(folder, "alone")], "one", 1)
    jobs = [job(folder, name, name) for name in ("ddp", "fsdp2")]
    jobs += [job(folder, "cut", "ddp", stop=2), job(folder, "continued", "ddp", after="cut")]
    groups.start(folder, jobs, "two", 2)
    return folder


def rows_of(place, name):
    return pq.read_table(place / f"{name}-rl" / "0" / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()


@pytest.mark.slow
def test_two_ranks_play_the_episodes_of_one_process(place):
    alone = rows_of(place, "alone")
    assert sum(len(row["turns"]) > 1 for row in alone) > 10
    for strategy in ("ddp", "fsdp2"):
        both = rows_of(place, strategy)
        assert [r["token_ids"] for r in both] == [r["token_ids"] for r in alone]
        assert [r["turns"] for r in both] == [r["turns"] for r in alone]
        one, two = (groups.weights(place, f"{name}-rl") for name in ("alone", strategy))
        groups.assert_close(one, two, 2e-5)


@pytest.mark.slow
def test_an_interrupted_group_resumes_bit_identical(place):
    files = [json.loads((place / f"{n}-rl" / "0" / "told.json").read_text())["files"] for n in ("ddp", "continued")]
    assert files[0] == files[1]
