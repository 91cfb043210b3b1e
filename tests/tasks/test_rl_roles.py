"""An RL stage whose rollouts, rewards and references have workers of their own makes what one process makes."""

import json

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from learning.data.rows import write_rows
from learning.parallel.actors import Threads
from tasks.context import Context
from tasks.rl import run
from tests.tasks.rl_stages import make_rl_stage

ROLES = {"rollout": 2, "reward": 2, "reference": 2}
TIMED = {"time", "tokens_per_second", "generation_seconds"}


def short(rows, completions):
    """The shorter, the better."""
    return [-len(text) / 8 for text in completions]


def stage(**more):
    return make_rl_stage(
        **{
            "rewards": [f"{__name__}:short"],
            "max_steps": 4,
            "learning_rate": 1e-3,
            "loss_aggregation": "sequence_mean",
            "loss_terms": [{"use": "kl", "coef": 0.1}],
            **more,
        }
    )


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    rest = {"answer": "", "family": "letters", "metadata": "{}"}
    prompts = ["ab", "abc", "b", "cab", "ba"]
    write_rows(
        folder,
        "prompts",
        [{"id": str(i), "prompt": [{"role": "user", "content": p}], **rest} for i, p in enumerate(prompts)],
    )
    return {"model": tiny_policy_folder, "prompts": folder}


def made(folder):
    outputs = folder / "outputs"
    texts = pq.read_table(next(outputs.glob("trajectories/*.parquet"))).to_pylist()
    return load_file(outputs / "model" / "model.safetensors"), texts


def curve(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("roles", [ROLES, {"reward": 1, "reference": 1}], ids=["all", "without rollout"])
def test_workers_change_nothing_but_rounding(roles, inputs, tmp_path):
    folders = {}
    for name, actors in (("here", None), ("apart", Threads(roles))):
        folders[name] = tmp_path / name
        checkpoints = tmp_path / f"{name}-checkpoints"
        folders[name].mkdir()
        checkpoints.mkdir()
        run(stage(), Context(inputs, folders[name], checkpoints, seed=3, actors=actors))
        if actors is not None:
            assert all(actors._at_work[role] for role in roles)
            actors.close()
    (weights, rows), (there, elsewhere) = made(folders["here"]), made(folders["apart"])
    assert [row["completion"] for row in elsewhere] == [row["completion"] for row in rows]
    exact = "rollout" not in roles
    for name, tensor in weights.items():
        assert (there[name] - tensor).abs().max() <= (0.0 if exact else 1e-4)
    for one, other in zip(curve(folders["here"]), curve(folders["apart"]), strict=True):
        for name in one.keys() - TIMED:
            assert other[name] == (one[name] if exact else pytest.approx(one[name], rel=1e-3, abs=1e-5)), name


def test_a_continued_stage_gives_its_workers_the_weights_of_the_checkpoint(inputs, tmp_path):
    class Stopped(Exception):
        pass

    def stop(event):
        if event.get("step") == 3 and "total" in event:
            raise Stopped

    contexts = {}
    for name, on_progress in (("whole", None), ("broken", stop), ("resumed", None)):
        folder, checkpoints = tmp_path / name, tmp_path / f"{name.replace('resumed', 'broken')}-checkpoints"
        folder.mkdir()
        checkpoints.mkdir(exist_ok=True)
        how = {"on_progress": on_progress} if on_progress else {}
        contexts[name] = Context(inputs, folder, checkpoints, seed=3, actors=Threads({"rollout": 2}), **how)
        if on_progress:
            with pytest.raises(Stopped):
                run(stage(), contexts[name])
        else:
            run(stage(), contexts[name])
        contexts[name].actors.close()
    (weights, rows), (again, same) = (made(contexts[name].folder) for name in ("whole", "resumed"))
    assert same == rows
    assert all((again[name] == tensor).all() for name, tensor in weights.items())
